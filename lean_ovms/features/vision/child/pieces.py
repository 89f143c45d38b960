"""Divides videos into frames, and images into tiles, and computes the sizes and positions of patches."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from ....media.pixels import Pixels, Size
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


def fitted(size: Size, unit: int, limits: tuple[int, int]) -> Size:
    """Returns the height and width to which an image is scaled: multiples of a token's side, within limits if possible.

    Args:
        size: The image's height and width.
        unit: The side of a token's square in pixels.
        limits: The fewest and the most pixels of the scaled image.
    """
    height, width = size
    least, most = limits
    tall, wide = (max(unit, round(side / unit) * unit) for side in size)
    if tall * wide > most:
        by = math.sqrt(height * width / most)
        tall, wide = (max(unit, math.floor(side / by / unit) * unit) for side in size)
    elif tall * wide < least:
        by = math.sqrt(least / (height * width))
        tall, wide = (math.ceil(side * by / unit) * unit for side in size)
    return tall, wide


def interpolation(count: int, known: int) -> NDArray[np.float32]:
    """Returns the shares [count, known] of known points in points between them, bilinear and with antialiasing.

    Args:
        count: The number of points that are wanted.
        known: The number of points that are known, over the same distance.
    """
    step = known / count
    reach = max(step, 1.0)
    distances = (np.arange(count)[:, None] + 0.5) * step - np.arange(known) - 0.5
    shares: NDArray[np.float64] = np.maximum(1 - np.abs(distances) / reach, 0)
    return np.asarray(shares / shares.sum(1, keepdims=True), np.float32)
