"""Image operations of several model families' processors, with the results of transformers with Pillow."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..types import Image

Pixels = NDArray[np.uint8]
"""An image as [height, width, RGB]."""
Size = tuple[int, int]
"""Height and width."""
LANCZOS, BILINEAR, BICUBIC = 1, 2, 3
"""Pillow's numbers of the resampling filters."""


def pixels(image: Image) -> Pixels:
    return np.frombuffer(image.pixels, np.uint8).reshape(image.height, image.width, 3)


def resized(image: Pixels, size: Size, resample: int = BICUBIC) -> Pixels:
    """Returns an image scaled to another size.

    Args:
        image: The image.
        size: The height and the width in pixels.
        resample: Pillow's number of the resampling filter.
    """
    from PIL import Image as Pillow  # of the extra `vision`: without it, no image gets as far as this

    made = Pillow.fromarray(image).resize((size[1], size[0]), Pillow.Resampling(resample))
    return np.asarray(made)


def shortest_edge(size: Size, edge: int) -> Size:
    """Returns the size of an image after scaling its shorter side to `edge`, with the same aspect ratio."""
    height, width = size
    longest = int(edge * max(size) / min(size))
    return (edge, longest) if height <= width else (longest, edge)


def center_cropped(image: Pixels, size: Size) -> Pixels:
    """Returns the center of an image, with black around it if the image is smaller than `size`."""
    height, width = image.shape[:2]
    tall, wide = max(height, size[0]), max(width, size[1])
    top, left = (height - size[0]) // 2, (width - size[1]) // 2
    if (tall, wide) != (height, width):
        padded = np.zeros((tall, wide, 3), np.uint8)
        above, before = math.ceil((tall - height) / 2), math.ceil((wide - width) / 2)
        padded[above : above + height, before : before + width] = image
        image, top, left = padded, max(0, top + above), max(0, left + before)
    return image[top : top + size[0], left : left + size[1]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """The normalization of pixel values for a network: (value * factor - mean) / std."""

    factor: float
    """The factor of all values."""
    mean: NDArray[np.float32]
    """The mean of each colour: [RGB]."""
    std: NDArray[np.float32]
    """The standard deviation of each colour: [RGB]."""

    @classmethod
    def read(cls, fields: dict[str, Any]) -> Scale:
        """Reads preprocessor_config.json. Raises KeyError, TypeError and ValueError."""
        normalized = fields.get("do_normalize", True)
        return cls(
            factor=float(fields.get("rescale_factor", 1 / 255)) if fields.get("do_rescale", True) else 1.0,
            mean=np.array(fields["image_mean"] if normalized else [0.0] * 3, np.float32),
            std=np.array(fields["image_std"] if normalized else [1.0] * 3, np.float32),
        )

    def __call__(self, image: Pixels) -> NDArray[np.float32]:
        """Returns the normalized image as [RGB, height, width]."""
        values = (image.astype(np.float64) * self.factor).astype(np.float32)
        return np.ascontiguousarray(((values - self.mean) / self.std).transpose(2, 0, 1))


@dataclass(frozen=True, slots=True, kw_only=True)
class SquareProcessor:
    """Resizes, crops and scales images of any size to one size, as CLIPImageProcessor and SiglipImageProcessor do."""

    edge: int
    """The length of the shorter side after resizing; 0 to resize images to `square`."""
    square: Size
    """The size to which images are resized, if `edge` is 0."""
    crop: Size | None
    """The size to cut out of the center; None to cut off nothing."""
    resample: int
    """Pillow's number of the resampling filter."""
    scale: Scale
    """The normalization of pixel values."""

    @classmethod
    def read(cls, fields: dict[str, Any]) -> SquareProcessor:
        """Reads preprocessor_config.json, also in its older form. Raises KeyError, TypeError and ValueError."""
        size, crop = fields["size"], fields.get("crop_size") or {}
        size = {"shortest_edge": size} if isinstance(size, int) else size
        crop = {"height": crop, "width": crop} if isinstance(crop, int) else crop
        edge = int(size["shortest_edge"]) if "shortest_edge" in size else 0
        crop = crop if fields.get("do_center_crop", bool(edge)) else {}
        return cls(
            edge=edge,
            square=(edge, edge) if edge else (int(size["height"]), int(size["width"])),
            crop=(int(crop["height"]), int(crop["width"])) if crop else None,
            resample=int(fields.get("resample", BICUBIC)),
            scale=Scale.read(fields),
        )

    def fitted(self, image: Pixels) -> Pixels:
        """Returns an image after resizing and cropping."""
        size = shortest_edge(image.shape[:2], self.edge) if self.edge else self.square
        image = resized(image, size, self.resample)
        return center_cropped(image, self.crop) if self.crop is not None else image
