"""The parts that both dialects of a session share: the types of a client's events, and the text sent to the client."""

from __future__ import annotations

from dataclasses import dataclass

from ....errors import BadRequest
from ....types import Json
from ...speech.api.transcript import entries
from ...speech.languages import separated
from ...speech.params import TextDelta

EVENTS = ("session.update", "input_audio_buffer.append", "input_audio_buffer.commit", "input_audio_buffer.clear")
"""The types of client events that both dialects have."""


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
    """The text of a transcript that has been sent."""

    text: str = ""
    """The whole text."""
    window: str = ""
    """The text of the current window."""

    def add(self, text: str) -> str:
        """Adds the text of a delta; returns it with a space before it if one is needed after the previous text."""
        begins, before = not self.window, self.text[-1:]
        self.window += text
        if not before:
            text = text.lstrip()
        elif begins and not before.isspace():
            text = separated(text)
        self.text += text
        return text

    def rest(self, window: str) -> str:
        """Returns the part of an ended window's text that was not in any delta."""
        return window[len(self.window) :] if window.startswith(self.window) else ""
