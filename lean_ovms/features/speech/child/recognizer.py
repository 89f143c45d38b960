"""The interface between the speech task and its backends: windows of audio in, text out, step by step."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ....errors import RequestError
from ....types.engine import ModelInfo, Vocabulary
from ..params import TextDelta, TranscribeParams, WindowDone

Samples = NDArray[np.float32]
"""Mono audio at 16 kHz, -1 to 1."""
SPECIAL = re.compile(r"<\|[^|<>]*\|>|<asr_text>")
"""Matches special tokens of Whisper and of Qwen3-ASR."""


def plain(text: str) -> str:
    """Replaces with spaces what the tokenizer would read as special tokens. Without them, others could be formed."""
    return SPECIAL.sub(" ", text).strip()


@dataclass(slots=True, eq=False)
class Job:
    """A window to transcribe.

    When the job is done, either `result` or `error` is set. A recognizer never changes a cancelled job again.
    """

    samples: Samples
    """All samples of the window."""
    start: float
    """The beginning of the window in the request's audio, in seconds."""
    params: TranscribeParams
    """The parameters of the request."""
    language: str = ""
    """The code of the language; "" if it has to be detected."""
    prompt: str = ""
    """The text that precedes the window's text."""
    max_tokens: int = 0
    """The most tokens of the text; 0 for the limit of the model."""
    times: bool = False
    """Whether timestamps are computed, for segments or words."""
    stream: bool = False
    """Whether text is added to `pieces` before the result is there."""
    soon: bool = False
    """Whether the job should start at once, instead of waiting for those that are being decoded."""
    pieces: list[TextDelta] = field(default_factory=list)
    """New text that the task has not taken yet."""
    result: WindowDone | None = None
    """The result, in which start, end and skipped time are not set yet."""
    read_to: float | None = None
    """The time at which the text ends, in seconds of the request's audio, if the rest of the window should be
    transcribed again together with the audio after it; else None."""
    error: RequestError | None = None
    """The error, if the window cannot be transcribed."""
    cancelled: bool = False
    """Whether nobody waits for the result any more."""
    begun: bool = False
    """Whether a recognizer has sent some of the text; only the recognizer uses it."""

    @property
    def done(self) -> bool:
        return self.result is not None or self.error is not None

    @property
    def end(self) -> float:
        """The end of the window in the request's audio, in seconds."""
        return self.start + len(self.samples) / 16000


class Recognizer(Protocol):
    """A loaded speech model, which computes jobs."""

    info: ModelInfo
    vocabulary: Vocabulary
    window: int
    """The most samples of a window."""

    def room(self, soon: bool) -> bool:
        """Returns whether another job can be started now; `soon` if it should not wait for those being decoded."""

    def start(self, jobs: list[Job]) -> None:
        """Begins to compute jobs, in addition to those that are running."""

    def step(self) -> None:
        """Computes a part of the running jobs. Jobs that are done or cancelled are running no more."""

    def decode(self, tokens: list[int], skip_special_tokens: bool) -> str:
        """Returns the text of these tokens."""

    def encode(self, texts: list[str], add_special_tokens: bool) -> list[list[int]]:
        """Returns the tokens of each text."""
