"""The records of transcriptions between the front end and the engine process."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

from ...engine.record import COMMAND, DataRecord, Record


@dataclass(slots=True)
class Transcribe(Record):
    """Transcribe the audio of the Audio records with this id. Answered by SpeechText, SpeechTurn, AudioUsed and
    WindowTranscribed records and then exactly one Transcribed, Failed or Refused.

    params: the fields of params.TranscribeParams. client: as in Submit.
    A request that goes on after the engine has died has a start: the samples of its audio that are transcribed, where
    the Audio records begin; the state of the last WindowTranscribed; and care: its next window is computed ALONE,
    or so and PLAIN, without times.
    """

    role = COMMAND
    ALONE: ClassVar[int] = 1
    PLAIN: ClassVar[int] = 2
    id: int
    params: dict[str, Any]
    client: str = ""
    start: int = 0
    state: dict[str, Any] = field(default_factory=dict)
    care: int = 0


@dataclass(slots=True)
class Audio(DataRecord):
    """The next samples of a Transcribe; last: there are no more. data: whole samples of 16 bits, little-endian, 16 kHz;
    sent as an attachment."""

    role = COMMAND
    id: int
    last: bool
    data: bytes = field(default=b"", metadata={"attached": True})


@dataclass(slots=True)
class WindowStarted(Record):
    """A window of this Transcribe is being computed from now on."""

    id: int


@dataclass(slots=True)
class SpeechText(Record):
    """New text of the window that is being computed: the fields of params.TextDelta."""

    id: int
    text: str
    logprobs: list[tuple[str, float]] | None = None


@dataclass(slots=True)
class SpeechTurn(Record):
    """Speech begins (started) or ends at this time, in seconds."""

    id: int
    started: bool
    at: float


@dataclass(slots=True)
class AudioUsed(Record):
    """The samples before this one are not needed again: they are transcribed, or have no speech."""

    id: int
    samples: int


@dataclass(slots=True)
class WindowTranscribed(Record):
    """A window is done. window: the fields of params.WindowDone. samples: as in AudioUsed. state: for
    Transcribe.state; of no meaning to the front end. queued_s, computed_s: time that it waited, and that it took."""

    id: int
    window: dict[str, Any]
    samples: int
    state: dict[str, Any]
    queued_s: float = 0.0
    computed_s: float = 0.0


@dataclass(slots=True)
class Transcribed(Record):
    """All of the audio of a Transcribe is transcribed."""

    id: int
