"""The records of images between the front end and the engine process."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ...engine.protocol import ANSWER, COMMAND, PARTIAL, DataRecord, PixelsRecord


@dataclass(slots=True)
class GenerateImage(PixelsRecord):
    """The command to make an image, answered by PartialImages, and then a GeneratedImage, Refused or Failed."""

    role = COMMAND
    prompt: str
    """The text that describes the image."""
    params: dict[str, Any]
    """The fields of an ImageParams."""
    begun: bool
    """Whether its request has an image already, so that it is not refused if too many images wait."""
    client: str = ""
    """The name of the client; clients take turns."""
    images: list[list[int]] = field(default_factory=list)
    """The height and the width of the image to edit and of its mask, if there are any."""
    pixels: list[bytes] = field(default_factory=list, metadata={"attached": True})
    """The pixels of these images, sent as attachments."""


@dataclass(slots=True)
class PartialImage(DataRecord):
    """An unfinished image of a GenerateImage command."""

    role = PARTIAL
    data: bytes = field(default=b"", metadata={"attached": True})
    """The file, sent as an attachment."""


@dataclass(slots=True)
class GeneratedImage(DataRecord):
    """The answer to GenerateImage, with the finished image."""

    role = ANSWER
    computed_s: float
    """The seconds that generating the image took."""
    data: bytes = field(default=b"", metadata={"attached": True})
    """The file, sent as an attachment."""
