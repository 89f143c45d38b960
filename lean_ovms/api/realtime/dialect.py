"""What the two dialects of a session have in common: events of the client in, events for it out, as JSON objects."""

from __future__ import annotations

from typing import ClassVar, Protocol

from ...errors import BadRequest, RequestError
from ...models.speech_model import SpeechModel
from ...observability.logging import safe
from ...speech_types import SpeechEvent, TextDelta
from ...types import Json
from .settings import Settings
from .stream import Stream

EVENTS = (
    "session.update",
    "input_audio_buffer.append",
    "input_audio_buffer.commit",
    "input_audio_buffer.clear",
)
"""Types of a client's events, which both dialects have."""
SPACELESS = ("zh", "ja", "th", "lo", "my", "yue")


class RealtimeSession(Protocol):
    """What a dialect may do with its session (session.py). settings: for the next stream. model_name: from the URL."""

    id: str
    model_name: str
    settings: Settings
    current: Stream | None

    async def send(self, event: Json) -> None:
        """An event to the client."""

    async def model(self, name: str = "") -> SpeechModel:
        """The model of this name, of the settings, or else the only one. Raises RequestError."""

    @property
    def written_s(self) -> float:
        """Seconds of audio that have come."""

    def described(self) -> Json:
        """The session as it is configured, as OpenAI's object."""

    async def configure(self, settings: Settings) -> None:
        """Settings for what comes from now on. Raises RequestError for those that the model cannot have."""

    async def open(self) -> Stream:
        """The current stream, or a new one without audio."""

    async def append(self, audio: str, *, committed: bool) -> Stream:
        """Audio of the current stream, or of a new one. committed: its text is sent as it comes."""

    async def close_stream(self, stream: Stream) -> None:
        """There is no more audio for this stream."""

    async def drop_stream(self, stream: Stream) -> None:
        """Forget this stream's audio."""


class Dialect(Protocol):
    """One client's conversation. Methods that send wait while the client does not read. events: types it handles."""

    events: ClassVar[tuple[str, ...]]

    def __init__(self, session: RealtimeSession) -> None: ...

    async def handle(self, event: Json) -> None:
        """Act on an event of the client, of a type in events. Raises RequestError."""

    async def refuse(self, error: RequestError, event: Json) -> None:
        """Tell the client that its event failed. event: {} for a message that is none."""

    async def transcribed(self, stream: Stream, event: SpeechEvent) -> None:
        """Something of a stream's transcription."""

    async def finished(self, stream: Stream) -> None:
        """A stream is transcribed."""

    async def failed(self, stream: Stream, error: RequestError) -> None:
        """A stream's transcription has failed, and ended."""

    def close(self) -> None:
        """The session has ended."""


def unknown_event(kind: str, events: tuple[str, ...]) -> BadRequest:
    """The error for an event of another type than these."""
    known = ", ".join(events)
    return BadRequest(f"Unknown event type: {safe(kind, 80)}. Known are {known}", param="type", code="unknown_event")


def audio_of(event: Json) -> str:
    """The base64 text of an append event. Raises BadRequest."""
    audio = event.get("audio")
    if not isinstance(audio, str):
        raise BadRequest("Invalid audio data: it is not a string", param="audio", code="invalid_audio")
    return audio


def has_spaces(language: str) -> bool:
    """Whether words of this language are written with spaces between them."""
    return language not in SPACELESS


def logprobs(event: TextDelta) -> list[Json] | None:
    """OpenAI's objects for the tokens of a delta; None where the model does not know them."""
    if event.logprobs is None:
        return None
    return [{"token": token, "logprob": value, "bytes": list(token.encode())} for token, value in event.logprobs]


def parted(text: str, before: str, spaceless: bool) -> str:
    """A text that follows another one, with the space between them."""
    if not before:
        return text.lstrip()
    if spaceless or not text or text[0].isspace() or before[-1].isspace():
        return text
    return f" {text}"
