"""Divides videos into frames, and images into tiles, and computes the sizes and positions of patches."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from ....media.pixels import Pixels, Size
from ....types import Image

CUBIC = -0.75
"""The parameter of PyTorch's cubic interpolation."""


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


def linear(count: int, known: int, *, smooth: bool = True) -> NDArray[np.float32]:
    """Returns the shares [count, known] of known points in points between them, bilinear.

    Args:
        count: The number of points that are wanted.
        known: The number of points that are known, over the same distance.
        smooth: Whether all known points count if there are more than are wanted (antialiasing).
    """
    reach = max(known / count, 1.0) if smooth else 1.0
    shares = np.maximum(1 - np.abs(_places(count, known)[:, None] - np.arange(known)) / reach, 0)
    return np.asarray(shares / shares.sum(1, keepdims=True), np.float32)


def cubic(count: int, known: int) -> NDArray[np.float32]:
    """Returns the shares [count, known] of known points in `count` points: bicubic, with continued ends."""
    places, found = _places(count, known), np.zeros((count, known))
    first = np.floor(places).astype(np.int64)
    for near in range(-1, 3):
        x = np.abs(places - first - near)
        inner = ((CUBIC + 2) * x - (CUBIC + 3)) * x * x + 1
        outer = ((CUBIC * x - 5 * CUBIC) * x + 8 * CUBIC) * x - 4 * CUBIC
        np.add.at(found, (np.arange(count), np.clip(first + near, 0, known - 1)), np.where(x <= 1, inner, outer))
    return found.astype(np.float32)


def _places(count: int, known: int) -> NDArray[np.float64]:
    """Returns where `count` points lie on the scale of the indices of `known` points, both spread over one distance."""
    return np.asarray((np.arange(count) + 0.5) * known / count - 0.5)
