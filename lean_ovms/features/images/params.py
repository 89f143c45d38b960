"""What an image model can do, how an image is made, and the image. Both processes use these classes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageInfo:
    """What the engine knows of an image model: size and steps of an image where a request says nothing.

    texts: it makes images of texts alone; edits: it edits images; masks: in the places of a mask only.
    """

    width: int
    height: int
    steps: int
    texts: bool = True
    edits: bool = False
    masks: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageParams:
    """How one image is made. Complete and in range, except for what depends on the model's networks.

    format: png, jpeg or webp. compression: of the last two, from 0 to 100, the quality of the image. partial_images:
    how often the unfinished image is sent, too. more: further arguments of openvino_genai's pipelines by their names,
    such as negative_prompt.
    """

    width: int
    height: int
    steps: int
    seed: int
    format: str = "png"
    compression: int = 100
    partial_images: int = 0
    more: dict[str, Any] = field(default_factory=dict)

    def due(self, done: int, steps: int) -> int:
        """How many unfinished images are due after so many of the steps; 0 after the last."""
        return done * (self.partial_images + 1) // steps if done < steps else 0


@dataclass(frozen=True, slots=True)
class ImageFile:
    """An image of a request. partial: the number of an unfinished one, from 0; None: it is finished."""

    data: bytes
    params: ImageParams
    partial: int | None = None
