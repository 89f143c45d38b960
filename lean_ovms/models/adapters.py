"""The adapters of one model, each served as a model of its own. Knows adapters and engines, no HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any, Generic, Protocol, TypeVar

from .. import lora_modules
from ..config import Config
from ..engine.client.engine import Engine
from ..engine.client.lazy_engine import EngineSlots, LazyEngine
from ..errors import StartError
from ..repository import lora


class Served(Protocol):
    """What is made for an adapter: a model."""

    async def load(self) -> None: ...

    async def stop(self) -> None: ...

    async def drain(self, successor: Any = None) -> None: ...


M = TypeVar("M", bound=Served)


class AdapterSet(Generic[M]):
    """By name, in the order of the option. make: a model of its own config and engine."""

    def __init__(self, config: Config, base: Engine | LazyEngine, make: Callable[[Config, LazyEngine], M]) -> None:
        """Raises StartError for a name that the model itself has."""
        self._config = config
        self._base = base
        self._make = make
        self._slots = EngineSlots(config.max_loras)
        self._leaving: set[asyncio.Task[None]] = set()
        self.models: dict[str, M] = {}
        for module in lora_modules.parse(config.lora_modules):
            self.models[module.name] = self._made(module)

    async def load(self) -> None:
        """Look at every adapter, and start none. Raises StartError."""
        for module in lora_modules.parse(self._config.lora_modules):
            await self._look_at(module)
        for model in self.models.values():
            await model.load()

    async def add(self, module: lora_modules.Module) -> M:
        """One more, or another one of that name, from now on. Raises StartError."""
        await self._look_at(module)
        model = self._made(module)
        await model.load()
        old = self.models.get(module.name)
        self.models[module.name] = model
        if old is not None:
            self._begin(old.drain(model))
        return model

    def remove(self, name: str) -> None:
        """Serve it no longer; what runs may finish. Raises KeyError."""
        self._begin(self.models.pop(name).drain())

    def _begin(self, leaving: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(leaving)
        self._leaving.add(task)
        task.add_done_callback(self._leaving.discard)

    async def drain(self, heirs: dict[str, M]) -> None:
        """Leave new requests to those of the same names, let the running ones finish, then stop."""
        await asyncio.gather(*(model.drain(heirs.get(name)) for name, model in self.models.items()))

    async def stop(self) -> None:
        """Stop all engines. Idempotent."""
        for task in self._leaving:
            task.cancel()
        await asyncio.gather(*(model.stop() for model in self.models.values()))

    async def _look_at(self, module: lora_modules.Module) -> None:
        if not self._config.fake_engine:
            await asyncio.to_thread(lora.check, module, self._config.model_dir)

    def _made(self, module: lora_modules.Module) -> M:
        if module.name == self._config.served_name:
            raise StartError(f"--lora_modules: {module.name!r} is the name of the model itself")
        share = max(1, self._config.cache_memory_percent // (2 * self._config.max_loras))
        own = replace(self._config, model_name=module.name, lora_modules="", allow_runtime_lora=False)
        engine = replace(own, lora_modules=lora_modules.dumps(module), cache_memory_percent=share)
        return self._make(own, LazyEngine(engine, self._base, self._slots))
