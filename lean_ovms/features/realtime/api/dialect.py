"""Declares what the two dialects of a session share: events of the client in, events for it out, as JSON objects."""

from __future__ import annotations

from dataclasses import dataclass

from ....errors import BadRequest
from ....types import Json
from ...speech.api.transcript import entries
from ...speech.params import TextDelta

EVENTS = ("session.update", "input_audio_buffer.append", "input_audio_buffer.commit", "input_audio_buffer.clear")
"""Types of a client's events, which both dialects have."""
SPACELESS = ("zh", "ja", "th", "lo", "my", "yue")
"""Languages without spaces between words."""


def audio_of(event: Json) -> str:
    """Returns the base64 text of an append event. Raises BadRequest."""
    audio = event.get("audio")
    if not isinstance(audio, str):
        raise BadRequest("Invalid audio data: it is not a string", param="audio", code="invalid_audio")
    return audio


def logprobs(event: TextDelta) -> list[Json] | None:
    """Returns OpenAI's log probability objects for the tokens of a delta; None if the model reports none."""
    return None if event.logprobs is None else entries(event.logprobs)


@dataclass(slots=True)
class Said:
    """The text that was sent of a transcript."""

    text: str = ""
    """All of it."""
    window: str = ""
    """What there was of the current window."""

    def add(self, text: str, language: str) -> str:
        """Adds the text of a delta. Returns it as it follows the text before, with the space that is needed there."""
        begins, before = not self.window, self.text[-1:]
        self.window += text
        if begins and not before:
            text = text.lstrip()
        elif begins and text and not (language in SPACELESS or text[0].isspace() or before.isspace()):
            text = f" {text}"
        self.text += text
        return text

    def rest(self, window: str) -> str:
        """Returns what no delta had of the text of a window that has ended."""
        return window[len(self.window) :] if window.startswith(self.window) else ""
