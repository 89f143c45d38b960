"""Declares what an image model can do, how an image is made, and the image. Both processes use these classes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageInfo:
    """The properties of an image model."""

    width: int
    """The width of an image where a request says nothing."""
    height: int
    """The height of such an image."""
    steps: int
    """The steps of such an image."""
    texts: bool = True
    """Whether it makes images of texts alone."""
    edits: bool = False
    """Whether it edits images."""
    masks: bool = False
    """Whether it edits the places of a mask only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageParams:
    """The parameters of one image. Complete and in range, except for what depends on the model's networks."""

    width: int
    """The width in pixels."""
    height: int
    """The height in pixels."""
    steps: int
    """The number of steps."""
    seed: int
    """The seed."""
    format: str = "png"
    """png, jpeg or webp."""
    compression: int = 100
    """The quality of a jpeg or webp, from 0 to 100."""
    partial_images: int = 0
    """How often the unfinished image is sent, too."""
    more: dict[str, Any] = field(default_factory=dict)
    """Further arguments of openvino_genai's pipelines by their names, such as negative_prompt."""

    def due(self, done: int, steps: int) -> int:
        """Returns how many unfinished images are due after so many of the steps; 0 after the last."""
        return done * (self.partial_images + 1) // steps if done < steps else 0


@dataclass(frozen=True, slots=True)
class ImageFile:
    """An image of a request."""

    data: bytes
    """The bytes of the file."""
    params: ImageParams
    """How it is made."""
    partial: int | None = None
    """The number of an unfinished image, from 0; None: it is finished."""
