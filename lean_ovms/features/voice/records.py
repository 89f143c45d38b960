"""The records for spoken texts that the front end and the engine process exchange."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ...engine.protocol import ANSWER, COMMAND, DataRecord, NumberedRecord


@dataclass(slots=True)
class Speak(NumberedRecord):
    """Asks for the speech of a text of about a sentence. The answer is one Spoken, Refused or Failed."""

    role = COMMAND
    text: str
    """The text to speak."""
    params: dict[str, Any]
    """The fields of types.audio.SpeakParams."""
    begun: bool
    """Whether an earlier part of its request has been spoken, so that it is not refused if too many texts wait."""
    client: str = ""
    """The name of the client. Clients take turns."""


@dataclass(slots=True)
class Spoken(DataRecord):
    """The answer to a Speak."""

    role = ANSWER
    data: bytes = field(default=b"", metadata={"attached": True})
    """Samples of 16 bits, little-endian, mono; sent as an attachment."""

    def answer(self) -> bytes:
        return self.data
