"""Shared by all tests of engine clients: a model that is ready, and a task of the worker without a child."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from lean_ovms.engine import protocol
from lean_ovms.errors import RequestError, Unavailable, from_wire
from lean_ovms.types.engine import EngineStats, ModelInfo, Vocabulary


class FakeEngineClient:
    """The part of EngineClient that all kinds of models use. With `refusal`, every request is rejected."""

    def __init__(self, info: ModelInfo, vocabulary: Vocabulary) -> None:
        self.info = info
        self.vocabulary = vocabulary
        self.state = "loading"
        self.restarts = 0
        self.pid, self.pids, self.processes = None, [], 1
        self.refusal: RequestError | None = None

    async def start(self) -> ModelInfo:
        self.state = "ready"
        return self.info

    async def stop(self) -> None:
        self.state = "stopped"

    async def call_each(self, make: Callable[[int], Any]) -> list[Any]:
        """Returns the only reply of FakeEngine.call, in a list."""
        return [await self.call(make)]  # type: ignore[attr-defined]

    def only(self, process: int) -> AbstractContextManager[None]:
        assert process == 0
        return nullcontext()

    def unavailable(self) -> Unavailable:
        return Unavailable(f"the model is {self.state}")

    def refuse(self) -> None:
        """Raises the refusal, if there is one."""
        if self.refusal is not None:
            raise self.refusal

    async def stats(self) -> EngineStats:
        return EngineStats(
            running=0, queued=0, kv_blocks_used=0, kv_blocks_total=100, steps=0, preemptions=0, recoveries=0
        )


class FakeTaskClient(FakeEngineClient):
    """Runs a task of the worker in this process, without a clock."""

    def __init__(self, task: Any, info: ModelInfo, vocabulary: Vocabulary | None = None) -> None:
        super().__init__(info, vocabulary or Vocabulary(pieces=[], exact=False))
        self.task = task

    def run(self, command: protocol.Record) -> list[protocol.Record]:
        """Returns the task's records for a command, after all its steps. Raises the error of a refusal."""
        self.task.handle(command)
        while not self.task.idle:
            self.task.admit()
            self.task.step()
        records = list(self.task.out)
        self.task.out.clear()
        for record in records:
            if isinstance(record, protocol.Refused):
                raise from_wire(record.error)
        return records

    async def stats(self) -> EngineStats:
        return EngineStats(**self.task.stats())
