"""The life of a served model: its directory is read, its engine child started; it is unloaded, replaced, stopped.

LoRA adapters are models with such a life, too. Knows no requests but those that wait for it, no HTTP and no task.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast

from .. import lora_modules
from ..config import Config, listed
from ..config.options import DIRECTORY, PRIVATE_DIRECTORY
from ..engine.client.engine import EngineClient
from ..engine_types import EngineStats, ModelInfo, Vocabulary
from ..errors import StartError, WrongOptions
from ..observability.metrics import Metrics
from ..repository import lora, weights
from ..repository.model_dir import MISSING, ModelDir, weights_bytes
from ..repository.model_dir import read as read_model_dir
from ..util.concurrency import InFlight, Offload
from .model_cache import ModelCache

if TYPE_CHECKING:
    from typing_extensions import Self

log = logging.getLogger("lean_ovms.models")

PROGRESS_S = 10.0
"""Seconds between two log lines about a model that is still loading."""
WEIGHTS_FACTOR = 1.2
"""Memory of a loaded model, without its KV cache, by the size of its weights."""
_ADAPTER_LOADS = count(1)
DIRECTORY_MODES = {DIRECTORY: 0o777, PRIVATE_DIRECTORY: 0o700}
"""The permissions with which the directories of options are made, by the kind of path."""
NO_VOCABULARY = Vocabulary(pieces=[], exact=False)
NO_STATS = EngineStats(running=0, queued=0, steps=0)


class Preparation(Protocol):
    """What a feature does for a model before requests may use it."""

    def check(self) -> None:
        """Checks what can be checked before the engine is started; called in a thread. Raises WrongOptions."""

    async def compute(self) -> None:
        """Does its work with the engine, which is ready. Raises StartError."""


class ModelLifecycle:
    """A model by name, with its engine child. While it drains it takes no new requests: its successor does, if any.

    task: what it computes. config: the options of this model. loaded: an engine child has been started, and not been
    stopped since. parent: the name of the model that it is an adapter of, or "". adapters: its own. failure: why the
    last attempt to load it, or its replacement, failed. announced: it is in the list of models while it loads, too.
    on_demand: a request loads it if it is not loaded. model_cache: decides when it is loaded and unloaded; None: it
    is loaded once. known_info: what is known of it before it is loaded. adapter: as in protocol.Submit, for one
    that the engine of its base serves; else "". preparations: what features do for it before requests may use it.
    """

    task: str = ""

    def __init__(
        self,
        config: Config,
        engine: EngineClient | Callable[[], EngineClient] | None = None,
        base: ModelLifecycle | None = None,
    ) -> None:
        """engine: the only one, or what makes one for each load. base: the model that this one is an adapter of.

        Raises StartError for an adapter with the name of the model.
        """
        self.config = config
        self.name: str = config.served_name
        self.parent: str = base.name if base else ""
        self.created = int(time.time())
        self.directory = ModelDir()
        self._base = cast("Self | None", base)  # AdapterSet makes one of its own kind
        self._make_engine = engine if callable(engine) else lambda: engine or EngineClient(_of_base(config))
        self.engine = self._make_engine()
        self.metrics = Metrics()
        self.offload = Offload(config.max_body_bytes)
        self.failure: StartError | None = None
        self.announced = False
        self.on_demand = False
        self.model_cache: ModelCache | None = None
        self.known_info: ModelInfo | None = None
        self.adapters = AdapterSet(self)
        self.in_flight = InFlight()
        self.adapter = ""
        self.preparations: list[Preparation] = []
        self._module: lora_modules.LoraModule | None = None
        self._info: ModelInfo | None = None
        self._vocabulary = NO_VOCABULARY
        self.loaded = False
        self._loads = 0
        self._checked = False
        self._restarts = 0
        self._stopped = False
        self._draining_since: float | None = None  # of time.monotonic
        self._successor: Self | None = None

    # --- life

    async def check(self) -> None:
        """Check what can be checked without an engine, before the server listens. Raises WrongOptions."""
        try:
            await self._read_directory()
            await self.adapters.check()
            if not self.config.fake_engine:
                await asyncio.to_thread(self._check_weights)
        except StartError as error:
            raise WrongOptions(str(error), reason=error.reason) from error
        self._checked = True

    async def open(self) -> None:
        """Check what can be checked without an engine; from now on a request loads the model. Raises StartError."""
        base = self._base
        info, vocabulary = (base.info, base.vocabulary) if base is not None else (self.known_info, NO_VOCABULARY)
        try:
            await self._read_once()
            await self.adapters.check()
            if info is not None:
                await asyncio.to_thread(self._import)
                if not self.loaded:
                    self._update(info, vocabulary)
        except StartError as error:
            self.failure, self.on_demand = error, False
            raise
        self.on_demand = True

    async def load(self) -> None:
        """Read the directory and start an engine; again after `unload`. Raises StartError."""
        if self._module is not None and self._base is not None and "adapters" in self._base.info.capabilities:
            name = f"{self._module.name}#{next(_ADAPTER_LOADS)}"  # the next load reads its files anew
            self.engine, self.adapter = self._base.engine, lora_modules.dumps(replace(self._module, name=name))
        elif self._loads:
            self._restarts += self.engine.restarts
            self.engine = self._make_engine()
        self._loads += 1
        if not self.config.fake_engine:
            log.info("loading %s from %s on %s", self.name, self.config.model_dir, self.config.target_device)
        began, progress = time.monotonic(), asyncio.create_task(self._report_progress())
        try:
            await self._load()
            await self.adapters.load()
        except StartError as error:
            self.failure, self.loaded = error, False
            await self._stop_engine()
            raise
        finally:
            progress.cancel()
        self.failure, self.on_demand = None, self.model_cache is not None
        self.metrics.model_loaded(self.name, time.monotonic() - began)
        log.info("%s: %s", self.name, self.summary)

    async def _report_progress(self) -> None:
        began = time.monotonic()
        while True:
            await asyncio.sleep(PROGRESS_S)
            log.info("%s is still loading after %.0f s", self.name, time.monotonic() - began)

    async def _load(self) -> None:
        await self._read_once()
        if self._stopped:
            raise StartError("the model was stopped before it was loaded")
        await asyncio.gather(asyncio.to_thread(self._import), *([] if self.adapter else [self.engine.start()]))
        self._update(self.engine.info, self.engine.vocabulary)
        await self._warm_up()
        self.loaded = True

    def _update(self, info: ModelInfo, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._prepare(info)
        self._info = info

    def _check_weights(self) -> None:
        if short := weights.short_file(self.config.model_dir, needed_only=True):
            raise StartError(short, reason=MISSING)

    async def _read_once(self) -> None:
        """Read the directory, unless `check` has just done it."""
        if not self._checked:
            await self._read_directory()
        self._checked = False

    async def _read_directory(self) -> None:
        if self.config.fake_engine:
            return
        self.directory = await asyncio.to_thread(
            read_model_dir,
            self.config.model_dir,
            generation_config=self.config.generation_config_path,
            override=self.config.override_generation_config,
            task=self.config.task,
        )
        await asyncio.to_thread(self._check_options)
        for preparation in self.preparations:
            await asyncio.to_thread(preparation.check)

    def _check_options(self) -> None:
        """Checks what can be checked of the options without an engine; called in a thread. Raises WrongOptions."""
        for row in listed(self.config.without):
            mode = DIRECTORY_MODES.get(row.metadata["path"])
            if mode is not None and (directory := self.config.value(row.name)):
                try:
                    Path(directory).mkdir(mode=mode, parents=True, exist_ok=True)
                except OSError as error:
                    raise WrongOptions(f"--{row.name} {directory}: {error.strerror}") from None

    def _import(self) -> None:
        """Import what `_prepare` needs; called in a thread while the engine loads."""

    def _prepare(self, info: ModelInfo) -> None:
        """Builds what requests need besides the engine, which is ready. Raises StartError."""

    async def _warm_up(self) -> None:
        """Computes what is to be computed before the model is ready. Raises StartError."""
        for preparation in self.preparations:
            await preparation.compute()

    async def unload(self) -> None:
        """Stop the engine, and those of adapters; requests load it again. None may be running."""
        self.loaded = False
        await self.adapters.unload()
        await self._stop_engine()
        self.metrics.model_unloaded(self.name)

    def leave_to(self, successor: Self | None) -> None:
        """Take no more requests but those that have arrived: the successor does, if any."""
        if self._draining_since is None:
            self._draining_since = time.monotonic()
        self._successor = successor
        if self.model_cache is not None:
            self.model_cache.retire(self)

    async def drain(self, successor: Self | None = None) -> None:
        """Leave new requests to the successor, let running ones finish, then stop."""
        self.leave_to(successor)
        await self.adapters.drain(successor.adapters.models if successor is not None else {})
        while self.in_flight:
            await self.in_flight.drained()
        await self.stop()

    async def stop(self) -> None:
        """Stop the engine child, and those of adapters. Idempotent."""
        self._stopped = True
        await self.adapters.stop()
        await self._stop_engine()
        if self.model_cache is not None and self._draining_since is not None:
            self.loaded = False
            self.model_cache.remove(self)

    async def _stop_engine(self) -> None:
        if not self.adapter:  # else it is the base's
            await self.engine.stop()

    # --- state

    @property
    def state(self) -> str:
        """The engine's state if it is loaded and the server awake, else the model cache's: "unloaded" and the like;
        "failed" after a load that failed, "loading" until the first one."""
        if self.loaded:
            state = self.model_cache.state(self) if self.model_cache is not None else ""
            return state if state in ("unloading", "sleeping") else self.engine.state
        if self.on_demand and self.model_cache is not None and not self._stopped:
            state = self.model_cache.state(self)
            return "failed" if self.failure is not None and state == "unloaded" else state
        return "failed" if self.failure is not None else "loading"

    @property
    def ready(self) -> bool:
        """Whether requests are served now; those of a model on demand load it if need be."""
        return self.state == "ready" or (self.on_demand and self.state in ("unloaded", "loading", "unloading"))

    @property
    def admits(self) -> bool:
        """Whether requests wait until it is loaded, instead of a 503."""
        return self.on_demand or (self.failure is None and self.model_cache is not None)

    @property
    def known(self) -> bool:
        """Whether `info` is known: it is loaded, or has been."""
        return self._info is not None

    @property
    def waiting(self) -> int:
        """Requests that wait until it is loaded."""
        member = self.model_cache.member(self) if self.model_cache is not None else None
        return len(member.waiters) if member is not None else 0

    @property
    def seconds_left(self) -> float | None:
        """How long it stays in memory without another request; None: until its memory is needed, or for ever."""
        member = self.model_cache.member(self) if self.model_cache is not None else None
        return member.group.seconds_left() if member is not None else None

    @property
    def restarts(self) -> int:
        """Engine children that were started in place of one that died."""
        return 0 if self.adapter else self._restarts + self.engine.restarts

    @property
    def memory_bytes(self) -> int:
        """What it will take when it is loaded, roughly, without its KV cache."""
        return 0 if self.config.fake_engine else int(WEIGHTS_FACTOR * weights_bytes(self.config.model_dir))

    @property
    def summary(self) -> str:
        return self.task

    @property
    def listed(self) -> bool:
        return self.ready or self.on_demand or (self.announced and self.state == "loading")

    @property
    def with_adapters(self) -> list[Self]:
        return cast("list[Self]", [self, *self.adapters.models.values()])

    @property
    def info(self) -> ModelInfo:
        """What the engine reported about the model; known once it has been loaded."""
        return self.engine.info if self.loaded or self._info is None else self._info

    @property
    def vocabulary(self) -> Vocabulary:
        """The vocabulary of the engine; as `info`, known once the model has been loaded."""
        return self.engine.vocabulary if self.loaded else self._vocabulary

    @property
    def tokenizer(self) -> EngineClient:
        """The engine that encodes and decodes within a Hold: adapters change no tokenizer, and may have no engine."""
        return self.engine if self.loaded or self._base is None else self._base.engine

    async def stats(self) -> EngineStats:
        """Returns the engine's statistics; zeros while the model is not loaded on demand, and for an adapter."""
        return NO_STATS if self.adapter or (self.on_demand and not self.loaded) else await self.engine.stats()


def _of_base(config: Config) -> Config:
    """Returns the config of the engine without an adapter: it must be of the same kind as those that have one."""
    adapters = config.allow_runtime_lora or bool(config.lora_modules)
    return config.replace(lora_modules="", allow_runtime_lora=adapters)


class AdapterSet:
    """The adapters of one model, each served as a model of its own. models: by name, in the order of the option.

    The paged engine takes adapters with requests: those of one model share its engine. Others do not (openvino-genai's
    continuous batching ignores them), and each adapter has an engine of its own. Either is loaded by the first request
    and unloaded when idle.
    """

    def __init__(self, base: ModelLifecycle) -> None:
        """Raises StartError for a name that the model itself has."""
        self._base = base
        self._config = base.config
        self._model_cache = ModelCache(base.config.max_loras)
        self._draining: set[asyncio.Task[None]] = set()
        self.models = {module.name: self._build(module) for module in lora_modules.parse(base.config.lora_modules)}

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

    async def add(self, module: lora_modules.LoraModule) -> ModelLifecycle:
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

    async def drain(self, successors: dict[str, ModelLifecycle]) -> None:
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

    def _build(self, module: lora_modules.LoraModule) -> ModelLifecycle:
        if module.name in self._config.served_names:
            raise StartError(f"--lora_modules: {module.name!r} is the name of the model itself")
        share = max(1, self._config.cache_memory_percent // (2 * self._config.max_loras))
        own = self._config.replace(model_name=module.name, model_aliases="", lora_modules="", allow_runtime_lora=False)
        engine = own.replace(lora_modules=lora_modules.dumps(module), cache_memory_percent=share)
        model = type(self._base)(own, lambda: EngineClient(engine), self._base)
        model._module = module
        model.metrics, model.offload = self._base.metrics, self._base.offload
        model.model_cache = self._model_cache
        self._model_cache.add(model, idle_timeout_s=self._config.lora_idle_timeout_s)
        return model
