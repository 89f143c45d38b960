"""The LoRA adapters of one model, each served as a model of its own. Knows adapters and the model cache, no HTTP.

The paged engine takes adapters with requests: those of one model share its engine. Others do not (openvino-genai's
continuous batching ignores them), and each adapter has an engine of its own. Either is loaded by the first request and
unloaded when idle.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import replace
from itertools import count
from typing import Any, Generic, Protocol, TypeVar

from .. import lora_modules
from ..config import Config
from ..errors import StartError
from ..repository import lora
from .model_cache.policy import ModelCache
from .model_cache.state import CachedModel

_LOADS = count(1)


def numbered(module: lora_modules.LoraModule) -> str:
    """Returns protocol.Submit.adapter for one load of an adapter, as the next one reads its files anew."""
    return lora_modules.dumps(replace(module, name=f"{module.name}#{next(_LOADS)}"))


class AdapterModel(CachedModel, Protocol):
    """The model of an adapter."""

    model_cache: ModelCache | None

    async def open(self) -> None: ...

    async def stop(self) -> None: ...

    def leave_to(self, successor: Any) -> None: ...

    async def drain(self, successor: Any = None) -> None: ...


M = TypeVar("M", bound=AdapterModel)


class AdapterSet(Generic[M]):
    """The adapters of one model. models: by name, in the order of the option. make: builds a model from its options and
    those of its engine."""

    def __init__(self, config: Config, make: Callable[[Config, Config], M]) -> None:
        """Raises StartError for a name that the model itself has."""
        self._config = config
        self._make = make
        self._model_cache = ModelCache(config.max_loras)
        self._draining: set[asyncio.Task[None]] = set()
        self.models: dict[str, M] = {}
        for module in lora_modules.parse(config.lora_modules):
            self.models[module.name] = self._build(module)

    async def check(self) -> None:
        """Check the files of every adapter. Raises StartError."""
        for module in lora_modules.parse(self._config.lora_modules):
            await self._check(module)

    async def load(self) -> None:
        """Serve the adapters of the model, which has been loaded; no engine is started. Raises StartError."""
        await self.check()
        for model in self.models.values():
            await model.open()

    async def unload(self) -> None:
        """Stop all engines; requests load them again, after the model."""
        await self._model_cache.unload_all()

    async def add(self, module: lora_modules.LoraModule) -> M:
        """Serve an adapter from now on, in place of one of that name. Raises StartError."""
        await self._check(module)
        model = self._build(module)
        await model.open()
        old = self.models.get(module.name)
        self.models[module.name] = model
        if old is not None:
            old.leave_to(model)
            self._drain(old.drain(model))
        return model

    def remove(self, name: str) -> None:
        """Serve an adapter no longer; running requests may finish. Raises KeyError."""
        self._drain(self.models.pop(name).drain())

    def _drain(self, drain: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(drain)
        self._draining.add(task)
        task.add_done_callback(self._draining.discard)

    async def drain(self, successors: dict[str, M]) -> None:
        """Leave new requests to the successors of the same names, let running ones finish, then stop."""
        await asyncio.gather(*(model.drain(successors.get(name)) for name, model in self.models.items()))

    async def stop(self) -> None:
        """Stop all engines. Idempotent."""
        for task in self._draining:
            task.cancel()
        await self._model_cache.stop()
        await asyncio.gather(*(model.stop() for model in self.models.values()))

    async def _check(self, module: lora_modules.LoraModule) -> None:
        if not self._config.fake_engine:
            await asyncio.to_thread(lora.check, module, self._config.model_dir)

    def _build(self, module: lora_modules.LoraModule) -> M:
        if module.name in self._config.served_names:
            raise StartError(f"--lora_modules: {module.name!r} is the name of the model itself")
        share = max(1, self._config.cache_memory_percent // (2 * self._config.max_loras))
        own = replace(self._config, model_name=module.name, model_aliases="", lora_modules="", allow_runtime_lora=False)
        engine = replace(own, lora_modules=lora_modules.dumps(module), cache_memory_percent=share)
        model = self._make(own, engine)
        model.model_cache = self._model_cache
        self._model_cache.add(model, idle_timeout_s=self._config.lora_idle_timeout_s)
        return model
