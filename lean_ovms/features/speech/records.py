"""The records of transcriptions between the front end and the engine process."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

from ...engine.protocol import COMMAND, DataRecord, NumberedRecord


@dataclass(slots=True)
class Transcribe(NumberedRecord):
    """The command to transcribe the audio of the Audio records with the same id.

    It is answered by SpeechText, SpeechTurn, AudioUsed and WindowTranscribed records, and then by exactly one
    Transcribed, Failed or Refused. `start`, `state` and `care` are set if the request continues after the engine has
    died.
    """

    role = COMMAND
    ALONE: ClassVar[int] = 1
    PLAIN: ClassVar[int] = 2
    params: dict[str, Any]
    """The fields of params.TranscribeParams."""
    client: str = ""
    """The name of the client. Clients take turns."""
    start: int = 0
    """The number of samples that are transcribed already; the Audio records begin after them."""
    state: dict[str, Any] = field(default_factory=dict)
    """The `state` of the last WindowTranscribed, with which the request continues; empty for a new request."""
    care: int = 0
    """How the next window is computed: ALONE, or ALONE and PLAIN, which is without timestamps; 0 for the usual way."""


@dataclass(slots=True)
class Audio(DataRecord):
    """The next samples for a Transcribe command."""

    role = COMMAND
    last: bool
    """Whether these are the last samples."""
    data: bytes = field(default=b"", metadata={"attached": True})
    """Whole samples of 16 bits, little-endian, 16 kHz; sent as an attachment."""


@dataclass(slots=True)
class WindowStarted(NumberedRecord):
    """The report that a window of a Transcribe command is being computed from now on."""


@dataclass(slots=True)
class SpeechText(NumberedRecord):
    """New text of the window that is being computed, with the fields of params.TextDelta."""

    text: str
    """The text."""
    logprobs: list[tuple[str, float]] | None = None
    """The bytes of each token, as Latin-1, and its log probability; None if they are not requested or not known."""


@dataclass(slots=True)
class SpeechTurn(NumberedRecord):
    """The report that speech begins or ends."""

    started: bool
    """Whether speech begins; otherwise it ends."""
    at: float
    """The time in the request's audio, in seconds."""


@dataclass(slots=True)
class AudioUsed(NumberedRecord):
    """The report that audio is not needed again, since it is transcribed or has no speech."""

    samples: int
    """The number of samples from the beginning that are not needed again."""


@dataclass(slots=True)
class WindowTranscribed(NumberedRecord):
    """The report that a window is transcribed."""

    window: dict[str, Any]
    """The fields of params.WindowDone."""
    samples: int
    """The number of samples from the beginning that are not needed again."""
    state: dict[str, Any]
    """The state after the window, which the front end only passes on as Transcribe.state."""
    queued_s: float = 0.0
    """The seconds that the window waited."""
    computed_s: float = 0.0
    """The seconds that computing the window took."""


@dataclass(slots=True)
class Transcribed(NumberedRecord):
    """The report that all audio of a Transcribe command is transcribed."""
