"""The worker's own voice task with the fake model, run in this process without a child or a clock."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from lean_ovms.config import Config
from lean_ovms.features.voice.child.fake_synthesizer import FakeSynthesizer
from lean_ovms.features.voice.child.task import VoiceTask
from lean_ovms.features.voice.model import VoiceModel
from lean_ovms.features.voice.records import Speak, Spoken
from lean_ovms.types.audio import SpeakParams
from tests.engine_client_fakes import FakeTaskClient


class FakeVoiceEngine(FakeTaskClient):
    """The parts of an engine that a VoiceModel needs.

    `asked` has text and parameters of every sentence, and whether its request had begun; `cancelled` the sentences that
    nobody waits for. Sentences after the first wait for `gate`, if it is set.
    """

    def __init__(self, config: Config) -> None:
        self.synthesizer = FakeSynthesizer(config)
        limits = config.max_queued_requests, config.max_queued_requests_per_client
        super().__init__(VoiceTask(self.synthesizer, *limits), self.synthesizer.info)
        self.asked: list[tuple[str, SpeakParams, bool]] = []
        self.cancelled: list[str] = []
        self.gate: asyncio.Event | None = None

    def describe(self, **changes: Any) -> None:
        """Changes the VoiceInfo that the front end and the engine see."""
        assert self.info.voices is not None
        self.info = replace(self.info, voices=replace(self.info.voices, **changes))

    async def call(self, make: Callable[[int], Speak]) -> bytes:
        command = make(1)
        text, begun = command.text, command.begun
        self.asked.append((text, SpeakParams(**command.params), begun))
        try:
            if self.gate is not None and begun:
                await self.gate.wait()
        except asyncio.CancelledError:
            self.cancelled.append(text)
            raise
        self.refuse()
        [record] = self.run(command)
        assert isinstance(record, Spoken)
        return record.data


async def fake_voice(**options: Any) -> tuple[VoiceModel, FakeVoiceEngine]:
    """Returns a loaded text-to-speech model, and its engine."""
    config = Config(**{"fake_engine": True, "model_name": "v", "task": "text2speech", "access_log": False, **options})
    engine = FakeVoiceEngine(config)
    model = VoiceModel(config, engine)  # type: ignore[arg-type]
    await model.load()
    return model, engine
