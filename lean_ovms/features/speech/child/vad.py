"""Voice activity detection: finds the frames of audio, of FRAME samples each, that have speech."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol

import numpy as np

from .recognizer import Samples

FRAME = 512
"""Samples: 32 ms."""
SILENCE = 0.001
"""Root mean square of a frame that has no sound: -60 dBFS."""
FAINT = 0.0001
"""The same for a file that has had no louder frame: -80 dBFS, three steps of 16 bits."""
AUDIBLE = 0.1
"""The largest absolute value to which faint samples are amplified before they are checked for speech."""
FLOOR_RISE = 1.01
"""The factor by which the assumed noise rises in a frame, about 2.7 dB a second; it falls at once."""
LOUD = 3.0
"""The loudness, as a multiple of the noise, that counts as speech with probability 0.5 (9.5 dB)."""


class Detector(Protocol):
    """A voice activity detector of one request, which gets frames in order and without gaps."""

    def probability(self, frame: Samples) -> float:
        """Returns the probability, from 0 to 1, that the next frame of FRAME samples has speech."""


SpeechCheck = Callable[[Samples], Iterator[bool]]
"""Yields for each second of the samples, the loudest first, whether it has speech. The first True is the last."""


def unchecked(_: Samples) -> Iterator[bool]:
    """Takes everything for speech, as a SpeechCheck."""
    yield True


class EnergyDetector:
    """Detects speech by its loudness above an adaptive noise floor; it is used if Silero's network does not load."""

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


def amplified(samples: Samples) -> Samples:
    """Returns faint samples so loud that a SpeechCheck finds speech in them."""
    louder: Samples = samples * np.float32(AUDIBLE / max(float(np.abs(samples).max(initial=0.0)), FAINT))
    return louder


def rms(samples: Samples) -> float:
    """Returns the root mean square of samples."""
    return float(np.sqrt(np.mean(np.square(samples)))) if len(samples) else 0.0
