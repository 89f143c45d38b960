"""What the two dialects of a session have in common: events of the client in, events for it out, as JSON objects."""

from __future__ import annotations

from ...errors import BadRequest
from ...observability.logging import safe
from ...speech_types import TextDelta
from ...types import Json

EVENTS = ("session.update", "input_audio_buffer.append", "input_audio_buffer.commit", "input_audio_buffer.clear")
"""Types of a client's events, which both dialects have."""
SPACELESS = ("zh", "ja", "th", "lo", "my", "yue")


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
