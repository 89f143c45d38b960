"""The seam between the task and what speaks: a loaded text-to-speech model. Knows no queue and no records.

A real model is pipeline.py, the fake one fake_synthesizer.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from ...engine_types import ModelInfo
from ...speech_types import SpeakParams

Samples = np.ndarray[Any, np.dtype[np.float32]]
"""Mono audio, from -1 to 1: [N]."""


class Synthesizer(Protocol):
    """One loaded model. Only the task calls it, from one thread."""

    info: ModelInfo
    slots: int
    """Texts that are spoken at once."""

    def speak(self, jobs: Sequence[tuple[str, SpeakParams]]) -> list[Samples | RuntimeError]:
        """Returns the speech of each of at most `slots` texts, at the model's own rate, or what it raised."""
