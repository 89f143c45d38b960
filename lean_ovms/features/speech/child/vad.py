"""Voice activity: which frames of audio have speech. A frame is FRAME samples; a request has a detector of its own."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from .recognizer import Samples

FRAME = 512
"""Samples: 32 ms."""
SILENCE = 0.001
"""Root mean square of a frame that has no sound: -60 dBFS."""
FLOOR_RISE = 1.01
"""The factor by which the assumed noise rises in a frame, about 2.7 dB a second; it falls at once."""
LOUD = 3.0
"""Times the noise that speech has at least (9.5 dB): probability 0.5."""


class Detector(Protocol):
    """Frames come in order and without gaps."""

    def probability(self, frame: Samples) -> float:
        """Returns the probability that the next frame has speech, from 0 to 1.

        Args:
            frame: The frame of FRAME samples.
        """


class EnergyDetector:
    """Detects speech by loudness over an adaptive noise floor; used where there is no network for it."""

    def __init__(self) -> None:
        self._floor = SILENCE

    def probability(self, frame: Samples) -> float:
        level = rms(frame)
        if level < SILENCE:
            self._floor = SILENCE
            return 0.0
        ratio = level / self._floor
        self._floor = max(SILENCE, min(self._floor * FLOOR_RISE, level))
        return ratio**2 / (ratio**2 + LOUD**2)


def rms(samples: Samples) -> float:
    """Returns the root mean square of samples."""
    return float(np.sqrt(np.mean(np.square(samples)))) if len(samples) else 0.0
