"""What the speech task needs of a backend: windows of audio in, text out, step by step. Imports numpy alone."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ....errors import RequestError
from ....types.engine import ModelInfo, Vocabulary
from ..params import TextDelta, TranscribeParams, WindowDone

Samples = NDArray[np.float32]
"""Mono audio at 16 kHz, -1 to 1."""


@dataclass(slots=True, eq=False)
class Job:
    """A window that is computed. samples: all of it. start: its time in the request's audio, in seconds.

    language: "" to detect it. prompt: text that comes before it. max_tokens: 0: the model's limit. times: segments or
    words are wanted and may be computed. stream: `pieces` are wanted before the result. soon: as
    in Recognizer.room.
    pieces: new text, until the task removes it. result: without start, end and skipped. read_to: where the text ends,
    in seconds, if what follows in the window is to be read again with the audio after it. One of result and error is
    set when the job is done; it is never touched again after `cancelled` is set. begun: a backend notes that it has
    sent some of the text.
    """

    samples: Samples
    start: float
    params: TranscribeParams
    language: str = ""
    prompt: str = ""
    max_tokens: int = 0
    times: bool = False
    stream: bool = False
    soon: bool = False
    pieces: list[TextDelta] = field(default_factory=list)
    result: WindowDone | None = None
    read_to: float | None = None
    error: RequestError | None = None
    cancelled: bool = False
    begun: bool = False

    @property
    def done(self) -> bool:
        return self.result is not None or self.error is not None

    @property
    def end(self) -> float:
        """Where the window ends, in seconds."""
        return self.start + len(self.samples) / 16000


class Recognizer(Protocol):
    """A loaded model. window: samples that it takes at once, at most."""

    info: ModelInfo
    vocabulary: Vocabulary
    window: int

    def room(self, soon: bool) -> bool:
        """Returns whether it takes another job now. soon: one that should not wait for those in work."""

    def start(self, jobs: list[Job]) -> None:
        """Begins to compute these jobs in addition to those at work."""

    def step(self) -> None:
        """Compute a part of all jobs in work; those that are done or cancelled leave."""

    def decode(self, tokens: list[int], skip_special_tokens: bool) -> str:
        """Returns the text of these tokens."""

    def encode(self, texts: list[str], add_special_tokens: bool) -> list[list[int]]:
        """Returns the tokens of each text."""
