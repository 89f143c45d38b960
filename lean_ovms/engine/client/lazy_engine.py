"""The engine of a LoRA adapter: a child that is started by the first request and stopped when idle.

Continuous batching takes no adapters per request (openvino-genai ignores them), so each adapter has a child of its own.
Tokenizer and vocabulary are those of the base model, whose engine encodes and decodes while no child is loaded.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from ...config import Config
from ...errors import RequestError, StartError, TooManyRequests, Unavailable
from ...pooling_types import PooledOutput, PoolingInput, PoolingParams
from ...speech_types import SpeakParams
from ...types import EngineStats, ModelInfo, Vocabulary
from .engine import Engine, ReplyStream

log = logging.getLogger("lean_ovms.engine")

IDLE_CHECKS = 8
"""Checks per idle timeout: an engine is stopped late by no more than that part of it."""
RETRY_S = 5


class EngineSlots:
    """Limits how many adapters of a model are loaded at once. The one that was idle longest is unloaded for another."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._holders: list[LazyEngine] = []

    async def acquire(self, one: LazyEngine) -> None:
        """Take a slot. Raises Unavailable when all are busy."""
        while len(self._holders) >= self._limit:
            idle = [holder for holder in self._holders if holder.idle]
            if not idle:
                error = Unavailable("All adapters that may be loaded at once are at work.", code="adapters_busy")
                error.retry_after_s = RETRY_S
                raise error
            await min(idle, key=lambda holder: holder.last_used).unload()
        self._holders.append(one)

    def release(self, one: LazyEngine) -> None:
        """Free its slot, if it has one."""
        if one in self._holders:
            self._holders.remove(one)


class Base(Protocol):
    """What is needed of a base model's engine."""

    @property
    def info(self) -> ModelInfo: ...

    @property
    def vocabulary(self) -> Vocabulary: ...

    async def encode(self, texts: list[str], add_special_tokens: bool, client: str = "") -> list[list[int]]: ...

    async def decode(self, tokens: list[int], skip_special_tokens: bool) -> str: ...

    def unavailable(self) -> Unavailable: ...


class LazyEngine:
    """Has the interface of engine.Engine. what: for messages."""

    what = "adapter"

    def __init__(
        self, config: Config, base: Base, slots: EngineSlots, make: Callable[[Config], Engine] = Engine
    ) -> None:
        """config: names the adapter in lora_modules. base: the engine of the model itself."""
        self.restarts = 0
        self.last_used = 0.0  # loop time
        self._config = config
        self._base = base
        self._slots = slots
        self._make = make
        self._engine: Engine | None = None
        self._loading: asyncio.Task[None] | None = None
        self._unloading: asyncio.Task[None] | None = None
        self._idle_unload: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._waiting = 0
        self._state = "loading"

    @property
    def state(self) -> str:
        """Ready once started, whether a child is loaded or not; stopped after stop."""
        return self._state

    @property
    def info(self) -> ModelInfo:
        """The base model's, until a child is loaded."""
        return self._engine.info if self._engine is not None else self._base.info

    @property
    def vocabulary(self) -> Vocabulary:
        return self._base.vocabulary

    @property
    def pid(self) -> int | None:
        """The child's process id, None while there is none."""
        return self._engine.pid if self._engine is not None else None

    @property
    def idle(self) -> bool:
        """Loaded, with no request in flight or about to be."""
        return self._engine is not None and not self._engine.busy and not self._waiting

    # --- life

    async def start(self) -> ModelInfo:
        """Be ready for requests; no child is started yet."""
        self._state = "ready"
        return self.info

    async def stop(self) -> None:
        """End the child, and everything in flight with an error. Idempotent."""
        self._state = "stopped"
        if self._loading is not None and not self._loading.done():
            self._loading.cancel()
            await asyncio.wait([self._loading])
        await self.unload()

    async def unload(self) -> None:
        """Stop the child, if there is one."""
        if self._timer is not None:
            self._timer.cancel()
        engine, self._engine = self._engine, None
        if engine is not None:
            self.restarts += engine.restarts
            self._unloading = asyncio.get_running_loop().create_task(self._stop(engine))
        if self._unloading is not None:
            await asyncio.wait([self._unloading])

    async def _stop(self, engine: Engine) -> None:
        try:
            await engine.stop()
        finally:
            self._slots.release(self)

    async def _running(self) -> Engine:
        """The child's engine, started if need be. Raises RequestError."""
        self.last_used = asyncio.get_running_loop().time()
        if self._engine is not None:
            return self._engine
        if self._waiting >= self._config.max_queued_requests:
            raise TooManyRequests(f"{self._waiting} requests are waiting for this {self.what} already")
        self._waiting += 1
        try:
            while (engine := await self._loaded()) is None:
                pass
            return engine
        finally:
            self._waiting -= 1

    async def _loaded(self) -> Engine | None:
        """Wait for the load that all requests share; a disconnect does not stop it. None: it was unloaded already."""
        if self._state == "stopped":
            raise self.unavailable()
        if self._loading is None or self._loading.done():
            self._loading = asyncio.get_running_loop().create_task(self._load())
            self._loading.add_done_callback(_log_unexpected)
        try:
            await asyncio.shield(self._loading)
        except asyncio.CancelledError:
            if self._state == "stopped":
                raise self.unavailable() from None
            raise
        return self._engine

    async def _load(self) -> None:
        """Raises Unavailable."""
        if self._unloading is not None:
            await asyncio.wait([self._unloading])
        await self._slots.acquire(self)
        engine = self._make(self._config)
        try:
            await engine.start()
        except BaseException as error:
            await self._stop(engine)
            if not isinstance(error, StartError):
                raise
            log.error("the %s %s cannot be served: %s", self.what, self._config.served_name, error)
            raise Unavailable(
                f"The {self.what} could not be loaded. {error.reason}", code="model_not_loaded"
            ) from error
        self._engine = engine
        self.last_used = asyncio.get_running_loop().time()
        self._schedule_idle_check()

    # --- idle time

    def _schedule_idle_check(self) -> None:
        timeout_s = self._config.lora_idle_timeout_s
        if timeout_s:
            self._timer = asyncio.get_running_loop().call_later(timeout_s / IDLE_CHECKS, self._check_idle)

    def _check_idle(self) -> None:
        now = asyncio.get_running_loop().time()
        if not self.idle:
            self.last_used = now
        if now - self.last_used >= self._config.lora_idle_timeout_s:
            log.info("the %s %s is idle: its engine is stopped", self.what, self._config.served_name)
            self._idle_unload = asyncio.get_running_loop().create_task(self.unload())
        else:
            self._schedule_idle_check()

    # --- requests

    async def submit(self, prompt: str | list[int], **asked: Any) -> ReplyStream:
        """As client.Engine.submit, after the child has been started if need be."""
        return await (await self._running()).submit(prompt, **asked)

    async def pool(self, inputs: Sequence[PoolingInput], params: PoolingParams) -> list[PooledOutput]:
        """As client.Engine.pool, after the child has been started if need be."""
        return await (await self._running()).pool(inputs, params)

    async def speak(self, text: str, params: SpeakParams, *, begun: bool = False, client: str = "") -> bytes:
        """As client.Engine.speak, after the child has been started if need be."""
        return await (await self._running()).speak(text, params, begun=begun, client=client)

    async def encode(self, texts: list[str], add_special_tokens: bool, client: str = "") -> list[list[int]]:
        """Tokenize; adapters change no tokenizer. Raises RequestError."""
        return await (self._engine or self._base).encode(texts, add_special_tokens, client)

    async def decode(self, tokens: list[int], skip_special_tokens: bool) -> str:
        """Detokenize. Raises RequestError."""
        return await (self._engine or self._base).decode(tokens, skip_special_tokens)

    async def stats(self) -> EngineStats:
        """The child's counts; zeros without one. Raises Unavailable."""
        if self._engine is not None:
            return await self._engine.stats()
        return EngineStats(
            running=0, queued=0, kv_blocks_used=0, kv_blocks_total=0, steps=0, preemptions=0, recoveries=0
        )

    def unavailable(self) -> Unavailable:
        """The error for a request that cannot be served now."""
        if self._state == "stopped":
            return Unavailable(f"The {self.what} is no longer served.", code="shutting_down")
        return self._base.unavailable()


def _log_unexpected(task: asyncio.Task[None]) -> None:
    """A RequestError was raised to the waiting requests; another error would get lost if all of them were cancelled."""
    if not task.cancelled():
        error = task.exception()
        if error is not None and not isinstance(error, RequestError):
            log.error("loading an adapter failed", exc_info=error)
