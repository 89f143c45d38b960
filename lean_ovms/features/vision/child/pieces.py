"""Divides videos into frames, and images into tiles."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ....media.pixels import Pixels
from ....types import Image


def frames(video: Image) -> list[Pixels]:
    return list(np.frombuffer(video.pixels, np.uint8).reshape(-1, video.height, video.width, 3))


def groups(video: Image, size: int) -> list[Image]:
    """Returns groups of `size` consecutive frames of a video, the last completed by repeating its last frame."""
    length, view, digest = 3 * video.height * video.width, memoryview(video.pixels), video.content()
    found = list[Image]()
    for first in range(0, len(video.times), size):
        times = video.times[first : first + size]
        part = bytes(view[first * length : (first + size) * length])
        missing = size - len(times)
        found.append(
            replace(
                video,
                pixels=part + part[-length:] * missing,
                digest=f"{digest} {first}",
                times=times + times[-1:] * missing,
            )
        )
    return found


def tiles(image: Pixels, side: int) -> list[Pixels]:
    """Divides an image into squares with this side, row by row."""
    height, width = image.shape[:2]
    return [image[y : y + side, x : x + side] for y in range(0, height, side) for x in range(0, width, side)]
