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
        """Sends an event to the client."""

    async def model(self, name: str = "") -> SpeechModel:
        """Returns the model of this name, else that of the settings, else the only one. Raises RequestError."""

    @property
    def written_s(self) -> float:
        """The seconds of audio received so far."""

    def described(self) -> Json:
        """Returns the current configuration as OpenAI's session object."""

    async def configure(self, settings: Settings) -> None:
        """Applies settings to audio that arrives from now on. Raises RequestError if the model cannot have them."""

    async def open(self) -> Stream:
        """Returns the current stream, or a new one without audio."""

    async def append(self, audio: str, *, committed: bool) -> Stream:
        """Adds audio to the current stream, or to a new one. committed: its text is sent as it is transcribed."""

    async def close_stream(self, stream: Stream) -> None:
        """Ends the audio of this stream."""

    async def drop_stream(self, stream: Stream) -> None:
        """Drops this stream, its audio and its text."""


class Dialect(Protocol):
    """One client's conversation. Methods that send wait while the client does not read. events: types it handles."""

    events: ClassVar[tuple[str, ...]]

    def __init__(self, session: RealtimeSession) -> None: ...

    async def handle(self, event: Json) -> None:
        """Handles a client's event of a type in `events`. Raises RequestError."""

    async def refuse(self, error: RequestError, event: Json) -> None:
        """Sends the error of a client's event. event: {} for a message that could not be read as one."""

    async def transcribed(self, stream: Stream, event: SpeechEvent) -> None:
        """Sends what an event of the engine adds to a stream's transcript."""

    async def finished(self, stream: Stream) -> None:
        """Called when a stream is transcribed to its end."""

    async def failed(self, stream: Stream, error: RequestError) -> None:
        """Called when a stream's transcription has ended with an error."""

    def close(self) -> None:
        """Called when the session has ended."""


def unknown_event(kind: str, events: tuple[str, ...]) -> BadRequest:
    """Returns the error for an event of a type that is not in `events`."""
    known = ", ".join(events)
    return BadRequest(f"Unknown event type: {safe(kind, 80)}. Known are {known}", param="type", code="unknown_event")


def audio_of(event: Json) -> str:
    """Returns the base64 text of an append event. Raises BadRequest."""
    audio = event.get("audio")
    if not isinstance(audio, str):
        raise BadRequest("Invalid audio data: it is not a string", param="audio", code="invalid_audio")
    return audio


def has_spaces(language: str) -> bool:
    """Returns whether words of this language are written with spaces between them."""
    return language not in SPACELESS


def logprobs(event: TextDelta) -> list[Json] | None:
    """Returns OpenAI's log probability objects for the tokens of a delta; None if the model reports none."""
    if event.logprobs is None:
        return None
    return [{"token": token, "logprob": value, "bytes": list(token.encode())} for token, value in event.logprobs]


def parted(text: str, before: str, spaceless: bool) -> str:
    """Returns a text that follows `before`, with the space between them where one is needed."""
    if not before:
        return text.lstrip()
    if spaceless or not text or text[0].isspace() or before[-1].isspace():
        return text
    return f" {text}"
