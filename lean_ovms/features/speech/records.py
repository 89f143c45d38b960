"""The records of transcriptions between the front end and the engine process."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

from ...engine.record import COMMAND, DataRecord, Record


@dataclass(slots=True)
class Transcribe(Record):
    """Transcribes the audio of the Audio records with this id.

    Answered by SpeechText, SpeechTurn, AudioUsed and WindowTranscribed records and then exactly one Transcribed, Failed
    or Refused. A request that goes on after the engine has died has a start, a state and care.
    """

    role = COMMAND
    ALONE: ClassVar[int] = 1
    PLAIN: ClassVar[int] = 2
    id: int
    """The number of the command."""
    params: dict[str, Any]
    """The fields of params.TranscribeParams."""
    client: str = ""
    """Who sends it; clients share the time of the engine."""
    start: int = 0
    """The samples of its audio that are transcribed already: the Audio records begin behind them."""
    state: dict[str, Any] = field(default_factory=dict)
    """The state of the last WindowTranscribed."""
    care: int = 0
    """How its next window is computed: ALONE, or ALONE and PLAIN, which is without times; 0: as usual."""


@dataclass(slots=True)
class Audio(DataRecord):
    """The next samples of a Transcribe."""

    role = COMMAND
    id: int
    """The number of the Transcribe."""
    last: bool
    """Whether there are no more."""
    data: bytes = field(default=b"", metadata={"attached": True})
    """Whole samples of 16 bits, little-endian, 16 kHz; sent as an attachment."""


@dataclass(slots=True)
class WindowStarted(Record):
    """A window of this Transcribe is being computed from now on."""

    id: int
    """The number of the Transcribe."""


@dataclass(slots=True)
class SpeechText(Record):
    """New text of the window that is being computed: the fields of params.TextDelta."""

    id: int
    """The number of the Transcribe."""
    text: str
    """The text."""
    logprobs: list[tuple[str, float]] | None = None
    """The text and the log probability of each token; None: they are not wanted, or not known."""


@dataclass(slots=True)
class SpeechTurn(Record):
    """Speech begins or ends."""

    id: int
    """The number of the Transcribe."""
    started: bool
    """Whether it begins."""
    at: float
    """When, in seconds."""


@dataclass(slots=True)
class AudioUsed(Record):
    """The samples before this one are not needed again: they are transcribed, or have no speech."""

    id: int
    """The number of the Transcribe."""
    samples: int
    """The number of the sample."""


@dataclass(slots=True)
class WindowTranscribed(Record):
    """A window is done."""

    id: int
    """The number of the Transcribe."""
    window: dict[str, Any]
    """The fields of params.WindowDone."""
    samples: int
    """The samples before this one are not needed again."""
    state: dict[str, Any]
    """What Transcribe.state is to have; of no meaning to the front end."""
    queued_s: float = 0.0
    """The seconds that it waited."""
    computed_s: float = 0.0
    """The seconds that it took."""


@dataclass(slots=True)
class Transcribed(Record):
    """All of the audio of a Transcribe is transcribed."""

    id: int
    """The number of the Transcribe."""
