"""One served model of any task: its name, its engine child, its state; it is loaded, unloaded, replaced and stopped.

A subclass names its task and adds the methods that requests call. Knows no HTTP, no task and no chat format.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Generic, TypeVar

from .. import lora_modules
from ..config import Config
from ..engine.client.engine import Engine
from ..engine_types import EngineStats, ModelInfo, Vocabulary
from ..errors import BadRequest, ModelNotFound, StartError, Unavailable, WrongOptions
from ..observability.logging import safe
from ..observability.metrics import Metrics
from ..repository import weights
from ..repository.model_dir import MISSING, VISION_WEIGHTS, ModelDir, weights_bytes
from ..repository.model_dir import read as read_model_dir
from ..util.concurrency import InFlight, Offload
from .adapters import AdapterSet, numbered
from .residency import Residency
from .resident import sleeping

M = TypeVar("M", bound="Model")

log = logging.getLogger("lean_ovms.models")

PROGRESS_S = 10.0
"""Seconds between two log lines about a model that is still loading."""
WEIGHTS_FACTOR = 1.2
"""Memory of a loaded model, without its KV cache, by the size of its weights."""
NO_VOCABULARY = Vocabulary(pieces=[], exact=False)
NO_STATS = EngineStats(running=0, queued=0, kv_blocks_used=0, kv_blocks_total=0, steps=0, preemptions=0, recoveries=0)


class NotLoaded(Unavailable):
    """503: nothing is known of the model until a request has loaded it. model: wait for it with `wait_known`."""

    def __init__(self, model: Model) -> None:
        super().__init__("The model is not loaded yet.")
        self.model = model


class Hold(Generic[M]):
    """One use of a model, which is loaded and stays so until the end of the block."""

    __slots__ = ("_base", "_model")

    def __init__(self, model: M, base: Hold[Any] | None) -> None:
        self._model = model
        self._base = base

    def __enter__(self) -> M:
        return self._model

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._model.in_flight.remove()
        if self._base is not None:
            self._base.__exit__(kind, error, trace)


class Model:
    """A model by name, with its engine child. While it drains it takes no new requests: its successor does, if any.

    task: what it computes, endpoints: where requests for it go; both are for error messages. wrong_task_status: of the
    error for a request that needs a model of another task, or that such a model gets.
    config: the options of this model. parent: the name of the model that it is an adapter of, or "".
    adapters: its own. failure: why the last attempt to load it, or its replacement, failed. announced: it is in the
    list of models while it loads, too. on_demand: a request loads it if it is not loaded. queues_while_loading: its
    requests wait for a load that is in progress, as those of a model on demand do. residency: decides when it is
    loaded and unloaded; None: it is loaded once. known_info: what is known of it before it is loaded.
    adapter: as in protocol.Submit, for one that the engine of its base serves; else "".
    """

    task: str = ""
    endpoints: str = ""
    wrong_task_status: int = 400

    def __init__(
        self, config: Config, engine: Engine | Callable[[], Engine] | None = None, base: Model | None = None
    ) -> None:
        """engine: the only one, or what makes one for each load. base: the model that this one is an adapter of.

        Raises StartError for an adapter with the name of the model.
        """
        self.config = config
        self.name: str = config.served_name
        self.parent: str = base.name if base else ""
        self.created = int(time.time())
        self.directory = ModelDir()
        self._base = base
        self._make_engine = _maker(engine or (lambda: Engine(_of_base(config))))
        self.engine = self._make_engine()
        self.metrics = Metrics()
        self.offload = Offload(config.max_body_bytes)
        self.failure: StartError | None = None
        self.announced = False
        self.on_demand = False
        self.queues_while_loading = False
        self.residency: Residency | None = None
        self.known_info: ModelInfo | None = None
        self.adapters: AdapterSet[Model] = AdapterSet(config, self._adapter)
        self.in_flight = InFlight()
        self.adapter = ""
        self._module: lora_modules.Module | None = None
        self._info: ModelInfo | None = None
        self._vocabulary = NO_VOCABULARY
        self._loaded = False
        self._loads = 0
        self._checked = False
        self._restarts = 0
        self._stopped = False
        self._draining = False
        self._successor: Model | None = None

    def _adapter(self, config: Config, engine: Config) -> Model:
        """The model of an adapter. engine: the options of its engine."""
        model = type(self)(config, lambda: Engine(engine), self)
        [model._module] = lora_modules.parse(engine.lora_modules)
        model.metrics, model.offload = self.metrics, self.offload
        return model

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
                if not self._loaded:
                    self._update(info, vocabulary)
        except StartError as error:
            self.failure, self.on_demand = error, False
            raise
        self.on_demand = True

    async def load(self) -> None:
        """Read the directory and start an engine; again after `unload`. Raises StartError."""
        if self._module is not None and self._base is not None and "adapters" in self._base.info.capabilities:
            self.engine, self.adapter = self._base.engine, numbered(self._module)
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
            self.failure, self._loaded, self.queues_while_loading = error, False, False
            await self._stop_engine()
            raise
        finally:
            progress.cancel()
        self.failure, self.on_demand = None, self.residency is not None
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
        self._loaded = True

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

    def _check_options(self) -> None:
        """What can be checked of the options without an engine; called in a thread. Raises WrongOptions."""
        if cache := self.config.cache_dir:
            try:
                Path(cache).mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise WrongOptions(f"--cache_dir {cache}: {error.strerror}") from None

    def _import(self) -> None:
        """Import what `_prepare` needs; called in a thread while the engine loads."""

    def _prepare(self, info: ModelInfo) -> None:
        """Build what requests need beside the engine, which is ready. Raises StartError."""

    async def unload(self) -> None:
        """Stop the engine, and those of adapters; requests load it again. None may be running."""
        self._loaded = False
        await self.adapters.unload()
        await self._stop_engine()
        self.metrics.model_unloaded(self.name)

    def leave_to(self, successor: Model | None) -> None:
        """Take no more requests: the successor does, if any."""
        self._draining, self._successor = True, successor
        if self.residency is not None:
            self.residency.retire(self)

    async def drain(self, successor: Model | None = None) -> None:
        """Leave new requests to the successor, let running ones finish, then stop."""
        self.leave_to(successor)
        await self.adapters.drain(successor.adapters.models if successor is not None else {})
        await self.in_flight.drained()
        await self.stop()

    async def stop(self) -> None:
        """Stop the engine child, and those of adapters. Idempotent."""
        self._stopped = True
        await self.adapters.stop()
        await self._stop_engine()
        if self.residency is not None and self._draining:
            self._loaded = False
            self.residency.remove(self)

    async def _stop_engine(self) -> None:
        if not self.adapter:  # else it is the base's
            await self.engine.stop()

    # --- state

    @property
    def loaded(self) -> bool:
        """An engine child has been started, and not been stopped since."""
        return self._loaded

    @property
    def state(self) -> str:
        """The engine's state if it is loaded, else the residency's: "unloaded" and the like; "failed" after a load that
        failed, "loading" until the first one."""
        if self._loaded:
            unloading = self.residency is not None and self.residency.state(self) == "unloading"
            return "unloading" if unloading else self.engine.state
        if self.on_demand and self.residency is not None and not self._stopped:
            state = self.residency.state(self)
            return "failed" if self.failure is not None and state == "unloaded" else state
        return "failed" if self.failure is not None else "loading"

    @property
    def ready(self) -> bool:
        """Whether requests are served now; those of a model on demand load it if need be."""
        return self.state == "ready" or (self.on_demand and self.state in ("unloaded", "loading", "unloading"))

    @property
    def admits(self) -> bool:
        """Whether requests wait until it is loaded, instead of a 503."""
        return self.on_demand or self.queues_while_loading

    @property
    def known(self) -> bool:
        """Whether `info` is known: it is loaded, or has been."""
        return self._info is not None

    @property
    def expects_images(self) -> bool:
        """Whether its files are those of a model with vision: what is known of it before it is loaded."""
        path = self.directory.path
        return path is not None and (path / VISION_WEIGHTS).is_file()

    @property
    def waiting(self) -> int:
        """Requests that wait until it is loaded."""
        return self.residency.waiting(self) if self.residency is not None else 0

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
        """What was loaded, for the log."""
        return self.task

    @property
    def listed(self) -> bool:
        """Whether it is in the list of models."""
        return self.ready or self.on_demand or (self.announced and self.state == "loading")

    @property
    def with_adapters(self) -> list[Model]:
        """The model and its adapters."""
        return [self, *self.adapters.models.values()]

    @property
    def info(self) -> ModelInfo:
        """What the engine reported about the model; known once it has been loaded."""
        return self.engine.info if self._loaded or self._info is None else self._info

    @property
    def vocabulary(self) -> Vocabulary:
        """As `info`."""
        return self.engine.vocabulary if self._loaded else self._vocabulary

    @property
    def tokenizer(self) -> Engine:
        """The engine that encodes and decodes within a Hold: adapters change no tokenizer, and may have no engine."""
        return self.engine if self._loaded or self._base is None else self._base.engine

    async def stats(self) -> EngineStats:
        """The engine's statistics; zeros while the model is not loaded on demand, and with its base's engine."""
        return NO_STATS if self.adapter or (self.on_demand and not self._loaded) else await self.engine.stats()

    # --- requests

    async def hold(self: M, *, engine: bool = True) -> Hold[M]:
        """For `with`: the model that serves a request for this one, resolved once, loaded, and not stopped inside.

        Every method that serves a request works on it alone, so no request is served half by a model and half by its
        successor. engine: False: an adapter needs none of its own for this. Raises RequestError.
        """
        while True:
            model = self._resolve()
            base = await model._base.hold() if model._base is not None else None
            try:
                if not engine and base is not None:
                    model.in_flight.add()
                elif not await model._acquire():
                    if model is self._resolve():
                        raise model.engine.unavailable()
                    if base is not None:
                        base.__exit__(None, None, None)
                    continue
            except BaseException:
                if base is not None:
                    base.__exit__(None, None, None)
                raise
            return Hold(model, base)

    async def _acquire(self) -> bool:
        """As Residency.hold."""
        if self.residency is not None and self.admits:
            return await self.residency.hold(self)
        self.serving()
        self.in_flight.add()
        return True

    async def wait_known(self) -> None:
        """Return when `info` is known, which may take a load. Raises RequestError."""
        with await self.hold(engine=False):
            pass

    def keep_loaded(self, seconds: float | None) -> list[str]:
        """Ollama's keep_alive of a request, as Residency.keep; a warning if it has no effect. Thread-safe."""
        base = self._base or self
        kept = base.residency is not None and base.residency.keep(base, seconds)
        return [] if kept or seconds is None else ["keep_alive has no effect: the model stays in memory"]

    def retain(self) -> None:
        """One more use, within a Hold and beyond it; `release` ends it."""
        self.in_flight.add()
        if self._base is not None:
            self._base.retain()

    def release(self) -> None:
        """One use less."""
        self.in_flight.remove()
        if self._base is not None:
            self._base.release()

    def _resolve(self: M) -> M:
        """This model, or the one that replaced it since the request was parsed. Raises RequestError."""
        model: Model = self
        while model._successor is not None:
            model = model._successor
        if model._draining:
            raise ModelNotFound(f"The model {safe(self.name)!r} is no longer served", param="model")
        return model.require_task(type(self))

    def serving(self: M) -> M:
        """This model, or its successor, of which `info` is known. Raises RequestError."""
        model = self._resolve()
        if model.known:
            return model
        if self.known:
            return self  # its successor has not been loaded yet: what is known of this one is the best guess
        if model.failure is not None and not model.on_demand:
            raise Unavailable(f"The model could not be loaded. {model.failure.reason}", code="model_not_loaded")
        raise NotLoaded(model) if model.admits else model.engine.unavailable()

    def require_ready(self: M) -> M:
        """As `serving`, of a model that serves requests now, or that one loads (again). Raises RequestError."""
        serving = self._resolve()
        if not serving.ready and not (serving.on_demand and serving.state == "failed"):
            raise sleeping() if serving.state == "sleeping" else serving.serving().engine.unavailable()
        return serving

    def require_task(self, kind: type[M]) -> M:
        """This model, as a model of this kind. Raises RequestError if it is a model of another task."""
        if not isinstance(self, kind):
            raise BadRequest(
                f"The model {safe(self.name)!r} does {self.task}, not {kind.task}; it is served under {self.endpoints}",
                param="model",
                code="wrong_task",
                status=max(kind.wrong_task_status, self.wrong_task_status),
            )
        return self


def _of_base(config: Config) -> Config:
    """The config of the engine that has no adapter loaded: it must be of the same kind as those that have one."""
    adapters = config.allow_runtime_lora or bool(config.lora_modules)
    return replace(config, lora_modules="", allow_runtime_lora=adapters)


def _maker(engine: Engine | Callable[[], Engine]) -> Callable[[], Engine]:
    return engine if callable(engine) else lambda: engine
