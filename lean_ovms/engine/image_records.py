"""The records of image models, which protocol.py exports with all others."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from .record import DataRecord, Record


@dataclass(slots=True)
class GenerateImage(Record):
    """Make one image. Answered by PartialImages, if it has some, and then one GeneratedImage, Refused or Failed.

    params: the fields of image_types.ImageParams. begun: its request has an image already, so it is not refused where
    too many wait. client: as in Submit. images: [height, width] of the image to edit, if there is one, and of its mask.
    pixels: their bytes, sent as attachments.
    """

    id: int
    prompt: str
    params: dict[str, Any]
    begun: bool
    client: str = ""
    images: list[list[int]] = field(default_factory=list)
    pixels: list[bytes] = field(default_factory=list, metadata={"attached": True})

    def attached(self) -> Iterable[bytes]:
        return self.pixels

    def attach(self, parts: Iterator[bytes]) -> None:
        self.pixels = [next(parts) for _ in self.images]


@dataclass(slots=True)
class PartialImage(DataRecord):
    """The unfinished image of a GenerateImage. data: the file; sent as an attachment."""

    id: int
    data: bytes = field(default=b"", metadata={"attached": True})


@dataclass(slots=True)
class GeneratedImage(DataRecord):
    """The reply to GenerateImage. data: the file; sent as an attachment. computed_s: time that it took."""

    id: int
    computed_s: float
    data: bytes = field(default=b"", metadata={"attached": True})
