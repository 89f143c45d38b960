"""Collects the events of a transcription, for streams and for other responses."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from ....types import Json, Usage
from ..params import Segment, SpeechEvent, TextDelta, WindowDone, Word

FRAMES_PER_S = 100
"""The number of Whisper's frames per second, which count as tokens of audio, as in vLLM."""

ENTRY_BYTES = 200
"""The approximate size in JSON of a segment, a word or a log probability."""

Logprobs = list[tuple[bytes, float]]
"""The bytes and the log probability of each token. A token may be a part of a character."""


def entries(logprobs: Logprobs) -> list[Json]:
    """Returns the log probabilities of tokens as OpenAI's objects."""
    return [
        {"token": token.decode("utf-8", "replace"), "logprob": value, "bytes": list(token)} for token, value in logprobs
    ]


@dataclass(slots=True)
class Transcript:
    """The result of a transcription so far."""

    text: str = ""
    """The text so far, without the space with which Whisper begins."""
    segments: list[Segment] = field(default_factory=list)
    """The segments so far."""
    seeks: list[float] = field(default_factory=list)
    """For each segment the beginning of its window, in seconds."""
    words: list[Word] = field(default_factory=list)
    """The words so far, with their times."""
    logprobs: Logprobs = field(default_factory=list)
    """The bytes and the log probability of each token."""
    language: str = ""
    """The language of the first window with text."""
    seconds: float = 0.0
    """The length of the audio in seconds, which the user of this object sets."""
    prompt_tokens: int = 0
    """The number of tokens of the decoder's prompts."""
    tokens: int = 0
    """The number of tokens that the decoder has generated."""
    stopped: str = "stop"
    """Why the last window ended: "stop", or "length" if a limit of tokens was reached."""
    _spoken: bool = False
    """Whether any window has had text."""
    _window: str = ""
    """The text of the unfinished window that deltas have had."""

    def add(self, event: SpeechEvent) -> tuple[str, Logprobs]:
        """Adds an event, and returns its new text and the log probabilities of its tokens."""
        if isinstance(event, TextDelta):
            self._window += event.text
            self.logprobs += event.logprobs or ()
            return self._shown(event.text), event.logprobs or []
        if isinstance(event, WindowDone):
            return self._end_window(event), []
        return "", []

    def _end_window(self, window: WindowDone) -> str:
        """Adds the result of a window, and returns the part of its text that no delta has had."""
        known, self._window = self._window, ""
        rest = window.text[len(known) :] if window.text.startswith(known) else ""
        found = [one for one in window.segments if one.text.strip()]
        self.segments += found
        self.seeks += [window.start] * len(found)
        self.words += window.words
        self.prompt_tokens += window.prompt_tokens
        self.tokens += window.tokens
        self.stopped = window.stopped
        if window.language and not self._spoken:
            self.language, self._spoken = window.language, bool(window.text.strip())
        return self._shown(rest)

    def _shown(self, text: str) -> str:
        if not self.text:
            text = text.lstrip()
        self.text += text
        return text

    @property
    def size(self) -> int:
        """The approximate size of its answer in bytes."""
        return len(self.text) + ENTRY_BYTES * (len(self.segments) + len(self.words) + len(self.logprobs))

    @property
    def audio_tokens(self) -> int:
        """The length of the audio in Whisper's frames, which count as prompt tokens."""
        return math.ceil(round(self.seconds * FRAMES_PER_S, 3))

    @property
    def usage(self) -> Usage:
        """The token counts as in vLLM: frames of audio and tokens of prompts, and generated tokens."""
        return Usage(self.prompt_tokens + self.audio_tokens, self.tokens)
