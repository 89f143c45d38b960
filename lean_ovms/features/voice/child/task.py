"""Text-to-speech as a task of the worker. A few texts are spoken in each step; clients take turns.

A request sends its next sentence after it has received the one before, so the requests of a client take turns, too, and
a cancelled one ends with its sentence. The task works with any Synthesizer, and is independent of openvino.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ....config import EngineConfig
from ....engine.protocol import Cancel, Record
from ....engine.task import Task, check_room
from ....errors import BadRequest, EngineFailure, install_command
from ....types.audio import SpeakParams
from ....types.engine import ModelInfo
from ....util.round_robin import RoundRobin
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

    def speak(self, jobs: Sequence[tuple[str, SpeakParams]]) -> list[Samples | Exception]:
        """Returns the audio of each of at most `slots` texts at the model's sample rate, or its exception."""


def load(config: EngineConfig, _: Callable[[], None]) -> VoiceTask:
    """Loads the model that the options name, and returns its task. Raises StartError."""
    if config.without_model:
        from .fake_synthesizer import FakeSynthesizer

        synthesizer: Synthesizer = FakeSynthesizer(config)
    else:
        from .pipeline import GenAiSynthesizer

        synthesizer = GenAiSynthesizer(config)
    return VoiceTask(synthesizer, config.max_queued_requests, config.max_queued_requests_per_client)


class VoiceTask(Task):
    """Speaks texts with a synthesizer."""

    def __init__(self, synthesizer: Synthesizer, max_queued: int, max_queued_per_client: int) -> None:
        """Creates the task without texts.

        Args:
            synthesizer: The loaded synthesizer.
            max_queued: The most texts that may wait.
            max_queued_per_client: The most of these of one client.
        """
        super().__init__(synthesizer.info)
        assert synthesizer.info.voices is not None
        self.synthesizer = synthesizer
        self.voices = synthesizer.info.voices
        self.max_queued, self.max_queued_per_client = max_queued, max_queued_per_client
        self._queue: RoundRobin[Speak] = RoundRobin()
        self._waiting: dict[int, Speak] = {}  # by id, those in the queue
        self._steps = self._failures = 0

    @property
    def idle(self) -> bool:
        return not self._queue

    def stats(self) -> dict[str, int]:
        return {"running": 0, "queued": len(self._waiting), "steps": self._steps, "recoveries": self._failures}

    def _handle(self, command: Record) -> None:
        match command:
            case Speak():  # the front end knows the model's abilities, and has checked everything else
                if not command.begun:
                    own = self._queue.of(command.client)
                    check_room(len(self._waiting), self.max_queued, own, self.max_queued_per_client)
                if rate := SpeakParams(**command.params).sample_rate:
                    check_rate(self.voices.sample_rate, rate)
                self._waiting[command.id] = command
                self._queue.add(command.client, command)
            case Cancel():
                if (waiting := self._waiting.pop(command.id, None)) is not None:
                    self._queue.remove(waiting.client, waiting)
            case _:
                raise BadRequest("text-to-speech models do not tokenize texts for clients")

    def step(self) -> None:
        found = (self._queue.next() for _ in range(self.synthesizer.slots))
        commands = [command for command in found if command is not None]
        for command in commands:
            del self._waiting[command.id]
        self._steps += 1
        jobs = [(command.text, SpeakParams(**command.params)) for command in commands]
        for command, (_, params), spoken in zip(commands, jobs, self.synthesizer.speak(jobs), strict=True):
            self._answer(command, params, spoken)

    def _answer(self, command: Speak, params: SpeakParams, found: Samples | Exception) -> None:
        if isinstance(found, Exception):
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
