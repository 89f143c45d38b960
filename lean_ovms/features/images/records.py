"""The records of images between the front end and the engine process."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ...engine.record import ANSWER, COMMAND, PARTIAL, DataRecord, PixelsRecord


@dataclass(slots=True)
class GenerateImage(PixelsRecord):
    """Make one image. Answered by PartialImages, if it has some, and then one GeneratedImage, Refused or Failed."""

    role = COMMAND
    id: int
    prompt: str
    params: dict[str, Any]
    """The fields of an ImageParams."""
    begun: bool
    """Whether its request has an image already, so that it is not refused where too many wait."""
    client: str = ""
    """Who sends it; clients take turns."""
    images: list[list[int]] = field(default_factory=list)
    """Height and width of the image to edit, if there is one, and of its mask."""
    pixels: list[bytes] = field(default_factory=list, metadata={"attached": True})
    """The bytes of these images, sent as attachments."""


@dataclass(slots=True)
class PartialImage(DataRecord):
    """The unfinished image of a GenerateImage."""

    role = PARTIAL
    id: int
    data: bytes = field(default=b"", metadata={"attached": True})
    """The file, sent as an attachment."""


@dataclass(slots=True)
class GeneratedImage(DataRecord):
    """The answer to GenerateImage."""

    role = ANSWER
    id: int
    computed_s: float
    """The time that it took, in seconds."""
    data: bytes = field(default=b"", metadata={"attached": True})
    """The file, sent as an attachment."""
