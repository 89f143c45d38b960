"""Declares the description of an image model, the parameters of an image, and the image, for both processes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageInfo:
    """The properties of an image model."""

    width: int
    """The width of an image if the request does not set it."""
    height: int
    """The height of an image if the request does not set it."""
    steps: int
    """The number of denoising steps if the request does not set it."""
    texts: bool = True
    """Whether it generates images from a text alone, without an image to edit."""
    edits: bool = False
    """Whether it edits images."""
    masks: bool = False
    """Whether it can edit only the parts of an image that a mask selects."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageParams:
    """The parameters of one image. They are checked, except for limits that depend on the model's networks."""

    width: int
    """The width in pixels."""
    height: int
    """The height in pixels."""
    steps: int
    """The number of denoising steps."""
    seed: int
    """The random seed."""
    format: str = "png"
    """The file format: "png", "jpeg" or "webp"."""
    compression: int = 100
    """The quality of a jpeg or webp, from 0 to 100."""
    partial_images: int = 0
    """The number of unfinished images that are sent as well."""
    more: dict[str, Any] = field(default_factory=dict)
    """Further arguments of openvino_genai's pipelines by their names, such as negative_prompt."""

    def due(self, done: int, steps: int) -> int:
        """Returns how many unfinished images should have been sent after `done` of the steps; 0 after the last step."""
        return done * (self.partial_images + 1) // steps if done < steps else 0


@dataclass(frozen=True, slots=True)
class ImageFile:
    """An image of a request."""

    data: bytes
    """The bytes of the file."""
    params: ImageParams
    """The parameters of the image."""
    partial: int | None = None
    """The number of an unfinished image, from 0; None if the image is finished."""
