"""Declares what the speech task needs of a backend: windows of audio in, text out, step by step. Imports numpy
alone."""

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
    """A window that is computed.

    One of result and error is set when the job is done. A cancelled job is never touched again.
    """

    samples: Samples
    """All samples of the window."""
    start: float
    """The beginning of the window in the request's audio, in seconds."""
    params: TranscribeParams
    """The parameters of the request."""
    language: str = ""
    """The code of the language; "": it is detected."""
    prompt: str = ""
    """The text that comes before that of the window."""
    max_tokens: int = 0
    """The most tokens of the text; 0: as many as the model allows."""
    times: bool = False
    """Whether segments or words are wanted, and may be computed."""
    stream: bool = False
    """Whether `pieces` are wanted before the result."""
    soon: bool = False
    """Whether the job should not wait for those that are computed."""
    pieces: list[TextDelta] = field(default_factory=list)
    """New text, which stays here until the task takes it."""
    result: WindowDone | None = None
    """The result, without its start, end and skipped time."""
    read_to: float | None = None
    """Where the text ends, in seconds, if the rest of the window is to be read again with the audio behind it; else
    None."""
    error: RequestError | None = None
    """Why the window cannot be transcribed."""
    cancelled: bool = False
    """Whether nobody waits for the result any more."""
    begun: bool = False
    """Whether a recognizer has sent some of the text; only the recognizer uses it."""

    @property
    def done(self) -> bool:
        return self.result is not None or self.error is not None

    @property
    def end(self) -> float:
        """Where the window ends, in seconds."""
        return self.start + len(self.samples) / 16000


class Recognizer(Protocol):
    """A loaded model."""

    info: ModelInfo
    vocabulary: Vocabulary
    window: int
    """The most samples that it takes at once."""

    def room(self, soon: bool) -> bool:
        """Returns whether it takes another job now.

        Args:
            soon: Whether the job should not wait for those at work.
        """

    def start(self, jobs: list[Job]) -> None:
        """Begins to compute these jobs in addition to those at work."""

    def step(self) -> None:
        """Computes a part of all jobs in work; those that are done or cancelled leave."""

    def decode(self, tokens: list[int], skip_special_tokens: bool) -> str:
        """Returns the text of these tokens."""

    def encode(self, texts: list[str], add_special_tokens: bool) -> list[list[int]]:
        """Returns the tokens of each text."""
