"""The worker's own pooling task with the fake model, run in this process without a child or a clock."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

from lean_ovms.config import Config
from lean_ovms.engine import protocol
from lean_ovms.engine.client.engine import unpacked
from lean_ovms.engine.client.replies import OnPartial
from lean_ovms.features.pooling.child.fake_pooler import FakePooler
from lean_ovms.features.pooling.child.task import PoolingTask
from lean_ovms.features.pooling.model import PoolingModel
from lean_ovms.features.pooling.types import PoolingInput, PoolingParams
from tests.engine_client_fakes import FakeTaskClient

BOS, EOS, END = 257, 256, 262
"""Special tokens of the fake model: BOS text EOS, or BOS query END document EOS."""


class FakePoolingEngine(FakeTaskClient):
    """The parts of an engine that a PoolingModel needs.

    `asked` has inputs and parameters of every request, `encoded` every text that was only tokenized. `info` is what the
    model says of itself; `describe` changes it.
    """

    def __init__(self, config: Config) -> None:
        pooler = FakePooler(config)
        limits = config.replace(max_queued_requests=8)
        super().__init__(PoolingTask(pooler, limits), pooler.info, pooler.vocabulary)
        self.asked: list[tuple[list[PoolingInput], PoolingParams]] = []
        self.encoded: list[list[str]] = []
        self._count = 0

    def describe(self, **changes: Any) -> None:
        """Changes the PoolingInfo that the front end and the engine see."""
        pooling = replace(self.task.info, **changes)
        self.info = replace(self.info, of_task=asdict(pooling), context_length=pooling.window)
        self.task.info = self.task.inputs._info = pooling

    async def call(self, make: Any, on_partial: OnPartial = None) -> Any:
        """Answers the request that `make` creates at once."""
        self.asked.append((list(make.keywords["inputs"]), make.keywords["params"]))
        self.refuse()
        self._count += 1
        *parts, last = self.run(make(self._count))
        assert on_partial is not None
        for part in parts:
            on_partial(part)
        return last

    async def encode(self, texts: list[str], add_special_tokens: bool, client: str = "") -> list[list[int]]:
        self.encoded.append(texts)
        self._count += 1
        [record] = self.run(protocol.Encode(self._count, texts, add_special_tokens))
        assert isinstance(record, protocol.Encoded)
        return await unpacked(record)

    async def decode(self, tokens: list[int], skip_special_tokens: bool) -> str:
        self._count += 1
        [record] = self.run(protocol.Decode(self._count, tokens, skip_special_tokens))
        assert isinstance(record, protocol.Decoded)
        return record.text


async def fake_model(task: str = "embeddings", **options: Any) -> tuple[PoolingModel, FakePoolingEngine]:
    """Returns a loaded pooling model of a task, and its engine."""
    config = Config(**{"fake_engine": True, "model_name": "e", "task": task, "access_log": False, **options})
    engine = FakePoolingEngine(config)
    model = PoolingModel(config, engine)  # type: ignore[arg-type]
    await model.load()
    return model, engine
