"""The records of image models, which protocol.py exports with all others."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

from .record import DataRecord, Record


@dataclass(slots=True)
class GenerateImage(Record):
    """Make one image. Answered by one GeneratedImage, Refused or Failed.

    params: the fields of image_types.ImageParams. begun: its request has an image already, so it is not refused where
    too many wait. client: as in Submit.
    """

    kind: ClassVar[str] = "generate_image"
    id: int
    prompt: str
    params: dict[str, Any]
    begun: bool
    client: str = ""


@dataclass(slots=True)
class GeneratedImage(DataRecord):
    """The reply to GenerateImage. data: the file; sent as an attachment."""

    kind: ClassVar[str] = "generated_image"
    id: int
    data: bytes = field(default=b"", metadata={"attached": True})
