"""A synthesizer without a model, used with --fake_engine: it plays a tone for each character.

A character is 10 ms of a sine whose frequency is its code point, so tests can tell what was spoken, in which order, by
which voice (its loudness) and how fast. Some characters make it fail, as in the fake pipeline.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ....config import EngineConfig
from ....types.audio import SpeakParams, VoiceInfo
from ....types.engine import ModelInfo
from ..feature import VoiceOptions

RATE = 16_000
CHARACTER_S = 0.01
VOICES = {"low": 0.25, "loud": 0.75}
RAISE, HANG, DIE, BROKEN = "<|raise|>", "<|hang|>", "<|die|>", "<|nan|>"
"""Texts that make it raise an exception, never return, kill the process, or return a value that is no number."""
MOST_CHARACTERS = 100


class FakeSynthesizer:
    """A task.Synthesizer without a model."""

    def __init__(self, config: EngineConfig) -> None:
        options = config.of(VoiceOptions)
        self.slots = config.streams
        self.info = ModelInfo(
            vocab_size=0,
            context_length=MOST_CHARACTERS,
            versions={"engine": "fake"},
            voices=VoiceInfo(
                sample_rate=RATE,
                voices=list(VOICES),
                languages=["en-us", "de"],
                speed=[options.speed_min, options.speed_max],
            ),
        )

    def speak(self, jobs: Sequence[tuple[str, SpeakParams]]) -> list[NDArray[np.float32] | Exception]:
        return [self._speak(text, params) for text, params in jobs]

    def _speak(self, text: str, params: SpeakParams) -> NDArray[np.float32] | Exception:
        if RAISE in text:
            return RuntimeError("the fake engine was asked to raise")
        if HANG in text:
            time.sleep(1e6)
        if DIE in text:
            os.kill(os.getpid(), signal.SIGKILL)
        if BROKEN in text:
            return np.full(8, np.nan, np.float32)
        times = np.arange(round(RATE * CHARACTER_S / params.speed)) / RATE
        loudness = VOICES.get(params.voice, VOICES["low"])
        tones = [loudness * np.sin(2 * np.pi * (100 + 10 * (ord(one) % 200)) * times) for one in text]
        return np.concatenate([*tones, np.zeros(0)]).astype(np.float32)
