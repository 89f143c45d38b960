"""Text-to-speech as a task of the worker. Texts are spoken in the order of their arrival, a few in each step.

A request sends its next sentence after it has received the one before, so requests take turns automatically, and a
cancelled one ends with its sentence. The task works with any Synthesizer, and is independent of openvino.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ....config import EngineConfig
from ....engine.protocol import Cancel, Record
from ....engine.task import Task, busy
from ....errors import BadRequest, EngineFailure, install_command, requests_waiting
from ....types.audio import SpeakParams
from ....types.engine import ModelInfo
from ..records import Speak, Spoken

log = logging.getLogger(__name__)

FAILED = "The engine could not speak this text."
NOT_A_NUMBER = "The model computed a value that is not a number."
Samples = NDArray[np.float32]
"""Mono audio with values from -1 to 1: [N]."""


class Synthesizer(Protocol):
    """A loaded text-to-speech model. Only the task calls it, from one thread."""

    info: ModelInfo
    slots: int
    """The number of texts that are spoken at once."""

    def speak(self, jobs: Sequence[tuple[str, SpeakParams]]) -> list[Samples | RuntimeError]:
        """Returns the audio of each of at most `slots` texts at the model's sample rate, or its exception."""


def load(config: EngineConfig, _: Callable[[], None]) -> VoiceTask:
    """Loads the model that the options name, and returns its task. Raises StartError."""
    if config.without_model:
        from .fake_synthesizer import FakeSynthesizer

        return VoiceTask(FakeSynthesizer(config), config.max_queued_requests)
    from .pipeline import GenAiSynthesizer

    return VoiceTask(GenAiSynthesizer(config), config.max_queued_requests)


class VoiceTask(Task):
    """Speaks texts with a synthesizer."""

    def __init__(self, synthesizer: Synthesizer, max_queued: int) -> None:
        """Creates the task of a loaded synthesizer, with the most texts that may wait."""
        super().__init__(synthesizer.info)
        assert synthesizer.info.voices is not None
        self.synthesizer = synthesizer
        self.voices = synthesizer.info.voices
        self.max_queued = max_queued
        self._queue: deque[Speak] = deque()
        self._steps = self._failures = 0

    @property
    def idle(self) -> bool:
        return not self._queue

    def stats(self) -> dict[str, int]:
        return {"running": 0, "queued": len(self._queue), "steps": self._steps, "recoveries": self._failures}

    def _handle(self, command: Record) -> None:
        match command:
            case Speak():  # the front end knows the model's abilities, and has checked everything else
                if len(self._queue) >= self.max_queued and not command.begun:
                    raise busy(requests_waiting(self.max_queued))
                if rate := SpeakParams(**command.params).sample_rate:
                    check_rate(self.voices.sample_rate, rate)
                self._queue.append(command)
            case Cancel():
                self._queue = deque(one for one in self._queue if one.id != command.id)
            case _:
                raise BadRequest("text-to-speech models do not tokenize texts for clients")

    def step(self) -> None:
        commands = [self._queue.popleft() for _ in range(min(self.synthesizer.slots, len(self._queue)))]
        self._steps += 1
        jobs = [(command.text, SpeakParams(**command.params)) for command in commands]
        for command, (_, params), found in zip(commands, jobs, self.synthesizer.speak(jobs), strict=True):
            self._answer(command, params, found)

    def _answer(self, command: Speak, params: SpeakParams, found: Samples | RuntimeError) -> None:
        if isinstance(found, RuntimeError):
            self._failures += 1
            log.error("text %d failed", command.id, exc_info=found)
            self._refuse(command, EngineFailure(FAILED))
        elif not np.isfinite(found).all():
            self._failures += 1
            log.error("text %d: the model computed a value that is not a number", command.id)
            self._refuse(command, EngineFailure(NOT_A_NUMBER))
        else:
            rate = self.voices.sample_rate
            self.out.append(Spoken(command.id, to_bytes(resampled(found, rate, params.sample_rate or rate))))


def check_rate(rate: int, wanted: int) -> None:
    """Raises BadRequest if speech cannot be resampled from the model's rate to this one."""
    try:
        import soxr  # noqa: F401
    except ImportError:
        if rate != wanted:
            text = (
                f"speech at {wanted} Hz from a model with {rate} Hz needs soxr, which is not installed on this server"
            )
            raise BadRequest(f"{text}: {install_command('audio')}", param="response_format") from None


def resampled(samples: Samples, rate: int, wanted: int) -> Samples:
    """Converts samples to another rate. Sentences begin and end in silence, so each can be resampled separately."""
    if rate == wanted or not samples.size:
        return samples
    import soxr

    found: Samples = soxr.resample(samples, rate, wanted, quality="HQ")
    return found


def to_bytes(samples: Samples) -> bytes:
    """Converts samples to signed 16 bit, little-endian; louder ones are clipped to full scale."""
    return bytes((np.clip(samples, -1.0, 1.0) * 32767.0).round().astype("<i2").tobytes())
