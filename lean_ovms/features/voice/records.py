"""The records of spoken texts between the front end and the engine process."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ...engine.record import ANSWER, COMMAND, DataRecord, Record


@dataclass(slots=True)
class Speak(Record):
    """Speaks a text of a sentence or so. Answered by one Spoken, Refused or Failed."""

    role = COMMAND
    id: int
    """The number of the command."""
    text: str
    """The text."""
    params: dict[str, Any]
    """The fields of types.audio.SpeakParams."""
    begun: bool
    """Whether some of its request has been spoken, so that it is not refused where too many wait."""
    client: str = ""
    """Who sends it; clients share the time of the engine."""


@dataclass(slots=True)
class Spoken(DataRecord):
    """The speech of a Speak."""

    role = ANSWER
    id: int
    """The number of the command."""
    data: bytes = field(default=b"", metadata={"attached": True})
    """Samples of 16 bits, little-endian, mono; sent as an attachment."""

    def answer(self) -> bytes:
        return self.data
