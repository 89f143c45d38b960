"""A worker on a pooler with a transport without a socket, for tests of the pooling task."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np

from lean_ovms.config import Config
from lean_ovms.engine.protocol import Refused
from lean_ovms.features.pooling.child.fake_pooler import FakePooler
from lean_ovms.features.pooling.child.task import PoolingTask
from lean_ovms.features.pooling.model import pool_record
from lean_ovms.features.pooling.records import Pooled, PooledPart
from lean_ovms.features.pooling.types import PoolingInput, PoolingParams
from tests.engine.rig import WorkerRig

LIMITS = Config(max_queued_requests=64, max_pooling_tokens=100_000, pooling_batch_tokens=1024)


class Rig(WorkerRig):
    """A worker and the records that it has sent.

    `batches` has the ids of the requests in each batch, in order; `shapes` the shapes of the batches; `first_ids` the
    first text of each batch without padding.
    """

    def __init__(self, task: str = "embeddings", limits: Config = LIMITS, pooler: Any = None, **options: Any) -> None:
        self.pooler = pooler or FakePooler(Config(fake_engine=True, task=task, **options))
        super().__init__(PoolingTask(self.pooler, limits))
        self.batches: list[list[int]] = []
        self.shapes: list[tuple[int, ...]] = []
        self.first_ids: list[list[int]] = []
        self._start = self.pooler.start
        self._next = self.task.queue.next_batch
        self.pooler.start = self._started
        self.task.queue.next_batch = self._chosen  # type: ignore[method-assign]

    def _started(self, batch: Any, alone: bool) -> None:
        self.shapes.append(batch.ids.shape)
        self.first_ids.append(batch.ids[0][batch.mask[0] == 1].tolist())
        self._start(batch, alone)

    def _chosen(self, tokens: int) -> Any:
        items = self._next(tokens)
        self.batches.append([item.request.id for item in items])
        return items

    def submit(self, *inputs: PoolingInput, client: str = "", **params: Any) -> int:
        """Puts a request of a client into the inbox. Returns its id."""
        number = self.next_id()
        self.put(pool_record(number, inputs, PoolingParams(**params), client))
        return number

    def records(self, kind: type[Any], number: int = 0) -> list[Any]:
        """Returns the records of a kind that were sent, for one request or for all."""
        return [record for record in self.sent() if type(record) is kind and number in (0, record.id)]

    def results(self, number: int = 0) -> list[PooledPart]:
        """Returns the results that were sent, for one request or for all."""
        return [*self.records(PooledPart, number), *self.records(Pooled, number)]

    def rows(self, number: int) -> list[np.ndarray[Any, Any]]:
        """Returns the result of each input of a request: [rows, width]."""
        found: dict[int, np.ndarray[Any, Any]] = {}
        for record in self.results(number):
            values = np.frombuffer(record.data, "<f4").reshape(-1, record.width)
            at = 0
            for index, rows in zip(record.indices, record.rows, strict=True):
                assert index not in found
                found[index] = values[at : at + rows]
                at += rows
            assert at == len(values)
        return [found[index] for index in sorted(found)]

    def tokens(self, number: int) -> list[int]:
        """Returns the number of tokens of each input of a request."""
        pairs = [pair for r in self.results(number) for pair in zip(r.indices, r.tokens, strict=True)]
        return [count for _, count in sorted(pairs)]

    def error(self, number: int) -> str:
        """Returns the message of a request's only error."""
        [refused] = self.records(Refused, number)
        return str(refused.error[1])

    def ask(self, *inputs: PoolingInput, **params: Any) -> list[np.ndarray[Any, Any]]:
        """Submits a request, runs it to the end, and returns the rows."""
        number = self.submit(*inputs, **params)
        self.run()
        assert self.records(Refused, number) == []
        return self.rows(number)


def with_info(pooler: Any, **changes: Any) -> Any:
    """Returns the pooler with changed fields of its PoolingInfo."""
    pooler.pooling = replace(pooler.pooling, **changes)
    pooler.info = replace(pooler.info, of_task=asdict(pooler.pooling))
    return pooler


def texts(count: int, length: int = 20) -> Sequence[str]:
    """Returns different texts with this many bytes."""
    return [f"{number:0{length}d}" for number in range(count)]
