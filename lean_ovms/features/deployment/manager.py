"""Keeps the served models in line with the configuration while the server runs.

If a model changes, the new one is loaded while the old one still serves; when the new one is ready, the old one
finishes its running requests. If a model does not load, the others, and the one that it should have replaced, stay as
they are. A model that is loaded by its requests is replaced at once, and loaded by the next request after the old one
has left memory.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from ...composition import TEXT_GENERATION
from ...config import Config
from ...errors import StartError, WrongOptions
from ...models.lifecycle import RETRY_S
from ...models.model import Deployment, Model, ModelRegistry, make_model
from ...observability.logging import abbreviate
from ...util.files import FileStat, file_stat
from ...util.resources import free_memory_bytes
from .desired import DesiredState, ModelSpec, desired_state, server_config
from .model_cache import ModelCache

if TYPE_CHECKING:
    from ...api.services import Services

log = logging.getLogger("lean_ovms.models")


ALL_CACHES_PERCENT = 50
"""The most of the free memory, in percent, for the KV caches of several models that have no configured size."""

LOADED_TOGETHER = 4
"""The number of models that share this memory if requests load them and only the memory limits their number."""


class DeploymentManager(Deployment):
    """Manages the configured models, which are registered when it is created.

    The caller then calls `load`, perhaps `watch`, which reloads changed files, and `stop`.
    """

    def __init__(
        self,
        config: Config,
        registry: ModelRegistry,
        *,
        read: Callable[[Config], DesiredState] = desired_state,
        make: Callable[[Config], Model] = make_model,
    ) -> None:
        """Registers the configured models.

        Args:
            config: The options of the server.
            registry: The registry of served models.
            read: Returns the desired state, given the options.
            make: Makes a model from its options.

        Raises:
            StartError: The options are wrong.
        """
        self._config = config
        self._registry = registry
        self._read = read
        self._make = make
        self._desired = read(config)
        self.model_cache = ModelCache(self._desired.max_loaded, free_memory_bytes)
        """The cache that decides which models are in memory."""
        self._files = dict(self._desired.files)
        self._specs: dict[str, ModelSpec] = {}  # the specifications of the models in the registry
        self._reloading: asyncio.Task[bool] | None = None
        self._next: asyncio.Task[bool] | None = None  # a reload that has not read the files yet
        self._later: asyncio.Task[None] | None = None  # the retry for models that failed to load
        self._draining: set[asyncio.Task[None]] = set()
        self._stopped = False
        for spec in self._desired.models:
            self._install(spec)

    @staticmethod
    def of_server(config: Config) -> Config:
        """Returns the server's options with those that a file of models sets for the server. Raises StartError."""
        return server_config(config)

    async def check(self) -> None:
        """Checks the options of required models before anything is loaded. Raises WrongOptions."""
        for spec in self._desired.models if self._desired.required else ():
            if spec.problem is not None:
                raise WrongOptions(str(spec.problem), reason=spec.problem.reason)
            await self._registry.models[spec.name].check()

    async def load(self) -> None:
        """Loads all models concurrently. Raises StartError if one that is required does not load.

        If another model does not load but may load later, it is tried again.
        """
        models = [(spec, self._registry.models[spec.name]) for spec in self._desired.models]
        failures = await asyncio.gather(*(self._load(spec, model) for spec, model in models))
        for (_, model), failure in zip(models, failures, strict=True):
            if failure is None or self._registry.models.get(model.name) is not model:
                continue  # it is served, or was replaced or removed meanwhile
            if self._desired.required:
                raise failure
            log.error("%s cannot be served: %s", model.name, failure)
        if waiting := [model.name for spec, model in models if spec.on_demand and model.on_demand]:
            log.info("loaded at their first requests: %s", abbreviate(waiting))

    async def reload(self) -> bool:
        """Reads the configuration again and serves it. Returns whether anything changed. Calls run one at a time.

        Raises StartError if the configuration cannot be parsed, which changes nothing, or if a model does not load, in
        which case the one that it should have replaced stays.
        """
        if self._stopped:
            raise _stopping()
        if self._next is None:
            self._next = asyncio.get_running_loop().create_task(self._reload_after(self._reloading))
            # Retrieves the error, because all clients may have disconnected.
            self._next.add_done_callback(lambda task: task.cancelled() or task.exception())
        reload = self._next
        try:
            return await asyncio.shield(reload)  # a client's disconnect must not interrupt a load
        except asyncio.CancelledError:
            if reload.cancelled():  # by `stop`
                raise _stopping() from None
            raise

    async def _reload_after(self, running: asyncio.Task[bool] | None) -> bool:
        """Reloads once more after a running reload, which may have read the files before they changed."""
        if running is not None:
            await asyncio.wait([running])
        self._reloading, self._next = self._next, None
        return await self._reload()

    async def watch(self, period_s: float) -> None:
        """Reloads whenever one of the files has changed; runs until cancelled."""
        while True:
            await asyncio.sleep(period_s)
            if not self._files or await asyncio.to_thread(self._stat_files) == self._files:
                continue
            try:
                await self.reload()
            except StartError:
                continue  # the error is logged by reload
            except Exception:  # a bug must not stop the served models
                log.exception("the changed configuration cannot be applied")

    async def stop(self) -> None:
        """Stops all engines, including those of models that are being loaded or drained. Idempotent."""
        self._stopped = True
        tasks = (self._later, self._next, self._reloading, *self._draining)
        running = [task for task in tasks if task is not None and not task.done()]
        for task in running:
            task.cancel()
        if running:
            await asyncio.wait(running)
        await self.model_cache.stop()
        await asyncio.gather(*(model.stop() for model in self._registry.models.values()))

    # --- one reload

    async def _reload(self) -> bool:
        # Also kept after a failure, so that this is logged only once.
        self._files = await asyncio.to_thread(self._stat_files)
        try:
            self._desired = await asyncio.to_thread(self._read, self._config)
        except StartError as error:
            log.error("the old configuration is kept: %s", error)
            raise
        self._files = dict(self._desired.files)
        specs = {spec.name: spec for spec in self._desired.models}
        removed = [name for name in self._registry.models if name not in specs]
        for name in removed:
            self._remove(name)
        changed = [spec for spec in specs.values() if self._differs(spec)]
        failures = await asyncio.gather(*(self._serve(spec) for spec in changed))
        self._registry.reorder(list(specs))
        if failed := [str(failure) for failure in failures if failure is not None]:
            raise StartError("; ".join(failed), reason="A model could not be loaded.")
        return bool(removed or changed)

    def _try_again(self, failure: StartError) -> None:
        """Schedules a reload of models that may load later; one reload serves all that fail until then."""
        if failure.temporary and self._later is None and not self._stopped:
            self._later = asyncio.get_running_loop().create_task(self._reload_later())

    async def _reload_later(self) -> None:
        await asyncio.sleep(RETRY_S)
        self._later = None
        with contextlib.suppress(StartError):  # the error is logged by reload
            await self.reload()

    def _differs(self, spec: ModelSpec) -> bool:
        """Returns whether a model is not served yet, or is served with other options."""
        model = self._registry.models.get(spec.name)
        return model is None or model.failure is not None or self._specs.get(spec.name) != spec

    def _stat_files(self) -> dict[Path, FileStat]:
        return {path: file_stat(path) for path in self._files}

    async def _serve(self, spec: ModelSpec) -> StartError | None:
        """Serves a model, and replaces the one with the same name. Returns the error if that failed."""
        name = spec.name
        old = self._registry.models.get(name)
        if old is None or not (old.ready or (spec.on_demand and old.on_demand)):
            model = self._install(spec)
            model.on_demand = model.on_demand or (old is None and spec.on_demand and spec.problem is None)
            failure = await self._load(spec, model)
        elif spec == self._specs.get(name):
            # The model is configured as it runs again, so the failed replacement no longer matters.
            failure = old.failure = None
        elif spec.problem is not None:
            failure = old.failure = spec.problem
        else:
            failure = await self._replace(old, spec)
        if failure is not None:
            log.error("%s cannot be served%s: %s", name, " with its changed configuration" if old else "", failure)
        elif old is not None:
            log.info("%s is served with its changed configuration", name)
        return failure

    async def _replace(self, old: Model, spec: ModelSpec) -> StartError | None:
        """Loads the new model while the old one serves, then swaps them. Returns the error if that failed."""
        model = self._build(spec)
        try:
            await (model.open() if spec.on_demand else model.load())
        except StartError as error:
            old.failure = error
            await model.stop()
            self._try_again(error)
            return error
        except BaseException:
            await model.stop()
            raise
        self._enter(spec, model)
        self._start_draining(old, model)
        return None

    # --- parts of it

    def _build(self, spec: ModelSpec) -> Model:
        """Makes a model without loading it. Its KV cache leaves other models their share of the memory."""
        cached = [one for one in self._desired.models if one.config.task in ("", TEXT_GENERATION.name)]
        sharing = sum(not one.config.cache_size for one in cached)
        if any(one.on_demand for one in cached):
            sharing = min(sharing, self._desired.max_loaded or LOADED_TOGETHER)
        share = max(1, min(spec.config.cache_memory_percent, ALL_CACHES_PERCENT // max(sharing, 1)))
        model = self._make(spec.config.replace(cache_memory_percent=share))
        model.announced = spec.announced
        return model

    def _install(self, spec: ModelSpec) -> Model:
        """Registers a model before it is loaded. A model of the same name, which cannot be ready, is drained."""
        old = self._registry.models.get(spec.name)
        model = self._build(spec)
        model.failure = spec.problem
        self._enter(spec, model)
        if old is not None:
            self._start_draining(old, model)
        return model

    def _enter(self, spec: ModelSpec, model: Model) -> None:
        """Registers a model, and adds it to the cache that decides what is in memory."""
        self._specs[spec.name] = spec
        model.on_demand = model.on_demand or model.loaded
        timeout_s = 0.0 if spec.permanent else spec.idle_timeout_s
        self.model_cache.add(model, spec.group, permanent=spec.permanent, idle_timeout_s=timeout_s)
        self._registry.install(model)

    async def _load(self, spec: ModelSpec, model: Model) -> StartError | None:
        """Loads a registered model, or leaves that to its first request. Returns the error if that failed."""
        if spec.problem is None:
            try:
                await (model.open() if spec.on_demand else self.model_cache.load(model))
            except StartError as error:
                self._try_again(error)
                return error
        return spec.problem

    def _remove(self, name: str) -> None:
        model = self._registry.remove(name)
        self._specs.pop(name, None)
        log.info("%s is no longer served", name)
        self._start_draining(model, None)

    def _start_draining(self, model: Model, successor: Model | None) -> None:
        model.leave_to(successor)
        task = asyncio.get_running_loop().create_task(self._drain(model, successor))
        self._draining.add(task)
        task.add_done_callback(self._draining.discard)

    async def _drain(self, model: Model, successor: Model | None) -> None:
        try:
            await model.drain(successor)
        finally:
            await model.stop()
        if successor is None:
            self._registry.removed(model.name)


def _stopping() -> StartError:
    return StartError("the server is stopping", reason="The server is shutting down.")


def manager_of(services: Services) -> DeploymentManager | None:
    """Returns the manager of a server's models, or None if the program that embeds the server manages them."""
    found = services.manager
    assert found is None or isinstance(found, DeploymentManager)
    return found
