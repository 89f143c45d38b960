"""The engine of a LoRA adapter: a child that is started by the first request and stopped when nobody asks any more.

Continuous batching takes no adapters per request (openvino-genai ignores them), so each adapter has a child of its own.
It knows its tokenizer and vocabulary from the model's own engine, which answers in its place what needs no network.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

from ...config import Config
from ...errors import RequestError, StartError, TooManyRequests, Unavailable
from ...types import EngineStats, ModelInfo, Vocabulary
from .engine import Engine, ReplyStream

log = logging.getLogger("lean_ovms.engine")

LOOKS = 8
"""How often in its idle time an engine is looked at: it is stopped late by no more than that part of it."""
RETRY_S = 5


class EngineSlots:
    """How many adapters of a model may be loaded at once. The one that was idle longest makes room."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._holders: list[LazyEngine] = []

    async def enter(self, one: LazyEngine) -> None:
        """Take a place. Raises Unavailable when all of them are at work."""
        while len(self._holders) >= self._most:
            idle = [holder for holder in self._holders if holder.idle]
            if not idle:
                error = Unavailable("All adapters that may be loaded at once are at work.", code="adapters_busy")
                error.retry_after_s = RETRY_S
                raise error
            await min(idle, key=lambda holder: holder.used).unload()
        self._holders.append(one)

    def leave(self, one: LazyEngine) -> None:
        """Give the place back."""
        if one in self._holders:
            self._holders.remove(one)


class LazyEngine:
    """The same as client.Engine to whoever uses it."""

    def __init__(
        self, config: Config, base: Engine | LazyEngine, slots: EngineSlots, make: Callable[[Config], Engine] = Engine
    ) -> None:
        """config: names the adapter in lora_modules. base: the engine of the model itself."""
        self.restarts = 0
        self.used = 0.0  # loop time of the last sign of use
        self._config = config
        self._base = base
        self._slots = slots
        self._make = make
        self._engine: Engine | None = None
        self._loading: asyncio.Task[None] | None = None
        self._unloading: asyncio.Task[None] | None = None
        self._sweeping: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._waiting = 0
        self._state = "loading"

    @property
    def state(self) -> str:
        """Ready once started, whether a child is loaded or not; stopped after stop."""
        return self._state

    @property
    def info(self) -> ModelInfo:
        """The model's own, until a child has told."""
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
        """Loaded, and nobody uses it or is about to."""
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
            self._slots.leave(self)

    async def _running(self) -> Engine:
        """The child's engine, started if need be. Raises RequestError."""
        self.used = asyncio.get_running_loop().time()
        if self._engine is not None:
            return self._engine
        if self._waiting >= self._config.max_queued_requests:
            raise TooManyRequests(f"{self._waiting} requests are waiting for this adapter already")
        self._waiting += 1
        try:
            while (engine := await self._loaded()) is None:
                pass
            return engine
        finally:
            self._waiting -= 1

    async def _loaded(self) -> Engine | None:
        """Wait for the load that all share; a client that leaves does not stop it. None: it is gone already."""
        if self._state == "stopped":
            raise self.unavailable()
        if self._loading is None or self._loading.done():
            self._loading = asyncio.get_running_loop().create_task(self._load())
            self._loading.add_done_callback(_heard)
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
        await self._slots.enter(self)
        engine = self._make(self._config)
        try:
            await engine.start()
        except BaseException as error:
            await self._stop(engine)
            if not isinstance(error, StartError):
                raise
            log.error("the adapter %s cannot be served: %s", self._config.served_name, error)
            raise Unavailable(f"The adapter could not be loaded. {error.reason}", code="model_not_loaded") from error
        self._engine = engine
        self.used = asyncio.get_running_loop().time()
        self._look_later()

    # --- idle time

    def _look_later(self) -> None:
        patience_s = self._config.lora_idle_timeout_s
        if patience_s:
            self._timer = asyncio.get_running_loop().call_later(patience_s / LOOKS, self._look)

    def _look(self) -> None:
        now = asyncio.get_running_loop().time()
        if not self.idle:
            self.used = now
        if now - self.used >= self._config.lora_idle_timeout_s:
            log.info("the adapter %s is idle: its engine is stopped", self._config.served_name)
            self._sweeping = asyncio.get_running_loop().create_task(self.unload())
        else:
            self._look_later()

    # --- requests

    async def submit(self, prompt: str | list[int], **asked: Any) -> ReplyStream:
        """As client.Engine.submit, after the child has been started if need be."""
        return await (await self._running()).submit(prompt, **asked)

    async def encode(self, texts: list[str], add_special_tokens: bool) -> list[list[int]]:
        """Tokenize; adapters change no tokenizer. Raises RequestError."""
        return await (self._engine or self._base).encode(texts, add_special_tokens)

    async def decode(self, tokens: list[int], skip_special_tokens: bool) -> str:
        """Detokenize. Raises RequestError."""
        return await (self._engine or self._base).decode(tokens, skip_special_tokens)

    async def stats(self) -> EngineStats:
        """The child's accounts; nothing at all without one. Raises Unavailable."""
        if self._engine is not None:
            return await self._engine.stats()
        return EngineStats(
            running=0, queued=0, kv_blocks_used=0, kv_blocks_total=0, steps=0, preemptions=0, recoveries=0
        )

    def unavailable(self) -> Unavailable:
        """The error for a request that cannot be served now."""
        if self._state == "stopped":
            return Unavailable("The adapter is no longer served.", code="shutting_down")
        return self._base.unavailable()


def _heard(task: asyncio.Task[None]) -> None:
    """Who waited has the error; nobody may have waited to the end."""
    if not task.cancelled():
        error = task.exception()
        if error is not None and not isinstance(error, RequestError):
            log.error("loading an adapter failed", exc_info=error)
