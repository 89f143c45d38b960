"""The LoRA adapters of a model, each of which is served as a model of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable, Mapping
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

from ...config import Config
from ...engine.client.engine import engine_of
from ...errors import BadRequest, StartError
from ...models.lifecycle import AdapterSet, ModelLifecycle
from ...repository import model_file
from ..deployment.model_cache import ModelCache
from . import files, modules
from .feature import ADAPTED, FIXED, LoraOptions

_LOADS = count(1)


class LoraSet(AdapterSet):
    """The LoRA adapters of one model."""

    def __init__(self, base: ModelLifecycle) -> None:
        """Keeps the model and its adapters. Raises StartError if an adapter has a name of the model itself."""
        super().__init__(base)
        self._base = base
        self._options = base.config.of(LoraOptions)
        self._model_cache = ModelCache(self._options.max_loras)
        self._draining: set[asyncio.Task[None]] = set()
        self.models: dict[str, ModelLifecycle] = {}
        self.scales: dict[str, float] = {}
        """The scales with which requests to the model itself use each adapter, by name."""
        self._modules: dict[str, modules.LoraModule] = {}
        """The adapters by name, each with a number that no other load of a file has."""
        for module in modules.parse(self._options.lora_modules):
            self._add(module)

    @property
    def engine_config(self) -> Config:
        """The options of the model's engine, which must be of the same kind as the engines of its adapters."""
        adapters = self._options.allow_runtime_lora or bool(self._options.lora_modules)
        return self.config.replace(lora_modules="", allow_runtime_lora=adapters)

    @property
    def most(self) -> int:
        """The most adapters in memory at once; 0 if the model has none and cannot get any."""
        return self._options.max_loras if self.models or self._options.allow_runtime_lora else 0

    async def check(self) -> None:
        """Checks the files of every adapter. Raises StartError."""
        for module in modules.parse(self._options.lora_modules):
            await self._check(module)

    async def load(self) -> None:
        """Begins to serve adapters that were checked, after the model was loaded. Raises StartError."""
        with model_file.reading_once(self.config):
            for module in modules.parse(self._options.lora_modules):
                await self._check_layers(module)
        if any(self.scales.values()) and not self.shared:
            pipeline = self._base.info.pipeline or "this engine"
            raise modules.invalid(f"{pipeline} serves adapters under their own names only, not by --lora")
        for model in self.models.values():
            await model.open()

    @property
    def shared(self) -> bool:
        """Whether the adapters are computed by the engine of the model."""
        return "adapters" in self._base.info.capabilities

    async def unload(self) -> None:
        """Stops the engines of the adapters. Requests load them again, after the model."""
        await self._model_cache.unload_all()

    async def add(self, name: str, path: str, alpha: float | None = None) -> ModelLifecycle:
        module = modules.LoraModule(name, path, alpha)
        with model_file.reading_once(self.config):
            await self._check(module)
            await self._check_layers(module)
        model = self._build(module)
        try:
            await model.open()
        except BaseException:  # also if the client has disconnected
            model.retire()
            await model.stop()
            raise
        old = self.models.get(module.name)
        self._add(module, model)
        if old is not None:
            old.leave_to(model)
            self._drain(old.drain(model))
        return model

    def remove(self, name: str) -> None:
        """Stops serving an adapter, whose running requests may finish. Raises KeyError."""
        self._drain(self.models.pop(name).drain())
        del self.scales[name], self._modules[name]

    def _add(self, module: modules.LoraModule, model: ModelLifecycle | None = None) -> None:
        """Serves an adapter, in place of one of the same name."""
        self.models[module.name] = model or self._build(module)
        self.scales.setdefault(module.name, module.scale if module.applied and self._options.apply_loras else 0.0)
        self._modules[module.name] = replace(module, load=next(_LOADS))

    def applied(self, adapter: str, scales: Iterable[tuple[int, float]]) -> str:
        used = self.by_name(scales) if scales else self.scales
        return modules.dumps(*(replace(self._modules[name], scale=scale) for name, scale in used.items() if scale))

    def by_name(self, scales: Iterable[tuple[int, float]]) -> dict[str, float]:
        """Returns the scales of adapters by name, given those by place; of others 0. Raises BadRequest."""
        names, given = [*self.models], dict(scales)
        if (most := max(given, default=-1)) >= len(names):
            raise BadRequest(f"lora: there is no adapter {most} among the {len(names)} of the model", param="lora")
        return {name: given.get(place, 0.0) for place, name in enumerate(names)}

    def _drain(self, drain: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(drain)
        self._draining.add(task)
        task.add_done_callback(self._draining.discard)

    async def drain(self, successors: Mapping[str, ModelLifecycle]) -> None:
        """Passes new requests to successors with the same names, waits for running ones, then stops the engines."""
        await asyncio.gather(*(model.drain(successors.get(name)) for name, model in self.models.items()))

    async def stop(self) -> None:
        """Stops the engines of the adapters. Idempotent."""
        for task in self._draining:
            task.cancel()
        await self._model_cache.stop()
        await asyncio.gather(*(model.stop() for model in self.models.values()))

    async def _check(self, module: modules.LoraModule) -> None:
        if not self.config.without_model:
            await asyncio.to_thread(files.check, module, self.config.model_dir)

    async def _check_layers(self, module: modules.LoraModule) -> None:
        """Checks that an adapter fits the network of the loaded model, if its engine says which layers that has. Raises
        StartError."""
        known = self._base.info.of_task
        if layers := known.get(ADAPTED):
            await asyncio.to_thread(files.check_layers, module, self.config.model_dir, layers, known[FIXED])
        elif model_file.is_one(Path(module.path)):
            raise modules.invalid(f"{self._base.info.pipeline} does not read {module.path}; --pipeline_type PAGED does")

    def _build(self, module: modules.LoraModule) -> ModelLifecycle:
        if module.name in self.config.served_names:
            raise StartError(f"--lora_modules: {module.name!r} is the name of the model itself")
        share = max(1, self.config.cache_memory_percent // (2 * self._options.max_loras))
        own = self.config.replace(model_name=module.name, model_aliases="", lora_modules="", allow_runtime_lora=False)
        engine = own.replace(lora_modules=modules.dumps(module), cache_memory_percent=share)
        model = type(self._base)(own, lambda: engine_of(engine), self._base)
        model.adapter_text = lambda: modules.dumps(replace(module, load=next(_LOADS)))
        model.metrics, model.offload = self._base.metrics, self._base.offload
        self._model_cache.add(model, idle_timeout_s=self._options.lora_idle_timeout_s)
        return model
