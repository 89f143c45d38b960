"""The records of spoken texts between the front end and the engine process."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ...engine.record import ANSWER, COMMAND, DataRecord, Record


@dataclass(slots=True)
class Speak(Record):
    """Speak a text of a sentence or so. Answered by one Spoken, Refused or Failed.

    params: the fields of types.audio.SpeakParams. begun: some of its request has been spoken, so it is not refused
    where too many wait. client: as in Submit.
    """

    role = COMMAND
    id: int
    text: str
    params: dict[str, Any]
    begun: bool
    client: str = ""


@dataclass(slots=True)
class Spoken(DataRecord):
    """The speech of a Speak. data: samples of 16 bits, little-endian, mono; sent as an attachment."""

    role = ANSWER
    id: int
    data: bytes = field(default=b"", metadata={"attached": True})

    def answer(self) -> bytes:
        return self.data
