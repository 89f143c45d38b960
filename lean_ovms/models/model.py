"""One served model of any task: its name, its engine child, its state; how it is loaded, replaced and stopped.

A subclass names its task and adds the methods that requests call. Knows no HTTP, no task and no chat format.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import TypeVar

from ..config import Config
from ..engine.client.engine import Engine
from ..engine.client.lazy_engine import LazyEngine
from ..errors import BadRequest, ModelNotFound, StartError, Unavailable
from ..observability.logging import safe
from ..observability.metrics import Metrics
from ..repository.model_dir import ModelDir
from ..repository.model_dir import read as read_model_dir
from ..types import EngineStats, ModelInfo
from ..util.concurrency import InFlight, Offload
from .adapters import AdapterSet

M = TypeVar("M", bound="Model")

log = logging.getLogger("lean_ovms.models")

PROGRESS_S = 10.0
"""Seconds between two log lines about a model that is still loading."""


class Model:
    """A model by name, with its engine child. While it drains it takes no new requests: its successor does, if any.

    task: what it computes, endpoints: where requests for it go; both are for error messages. wrong_task_status: of the
    error for a request that needs a model of another task, or that such a model gets.
    config: the options of this model. parent: the name of the model that it is an adapter of, or "".
    adapters: its own. failure: why the last attempt to load it, or its replacement, failed. announced: it is in the
    list of models while it loads, too.
    """

    task: str = ""
    endpoints: str = ""
    wrong_task_status: int = 400

    def __init__(self, config: Config, engine: Engine | LazyEngine | None = None, parent: str = "") -> None:
        """Raises StartError for an adapter with the name of the model."""
        self.config = config
        self.parent = parent
        self.name = config.served_name
        self.created = int(time.time())
        self.directory = ModelDir()
        self.engine = engine or Engine(replace(config, lora_modules=""))
        self.metrics = Metrics()
        self.offload = Offload(config.max_body_bytes)
        self.failure: StartError | None = None
        self.announced = False
        self.adapters: AdapterSet[Model] = AdapterSet(config, self.engine, self._adapter)
        self.in_flight = InFlight()
        self._loaded = False
        self._draining = False
        self._successor: Model | None = None

    def _adapter(self, config: Config, engine: LazyEngine) -> Model:
        model = type(self)(config, engine, parent=self.name)
        model.metrics, model.offload = self.metrics, self.offload
        return model

    # --- life

    async def load(self) -> None:
        """Read the directory and start the engine. Raises StartError."""
        if not self.config.fake_engine:
            log.info("loading %s from %s on %s", self.name, self.config.model_dir, self.config.target_device)
        progress = asyncio.create_task(self._report_progress())
        try:
            await self._load()
            await self.adapters.load()
        except StartError as error:
            self.failure = error
            await self.engine.stop()
            raise
        finally:
            progress.cancel()
        log.info("%s: %s", self.name, self.summary)

    async def _report_progress(self) -> None:
        began = time.monotonic()
        while True:
            await asyncio.sleep(PROGRESS_S)
            log.info("%s is still loading after %.0f s", self.name, time.monotonic() - began)

    async def _load(self) -> None:
        if not self.config.fake_engine:
            self.directory = await asyncio.to_thread(
                read_model_dir,
                self.config.model_dir,
                generation_config=self.config.generation_config_path,
                override=self.config.override_generation_config,
                task=self.config.task,
            )
            await asyncio.to_thread(self._check_options)
        info, _ = await asyncio.gather(self.engine.start(), asyncio.to_thread(self._import))
        self._prepare(info)
        self._loaded = True

    def _check_options(self) -> None:
        """What can be checked of the options without an engine; called in a thread. Raises WrongOptions."""

    def _import(self) -> None:
        """Import what `_prepare` needs; called in a thread while the engine loads."""

    def _prepare(self, info: ModelInfo) -> None:
        """Build what requests need beside the engine, which is ready. Raises StartError."""

    async def drain(self, successor: Model | None = None) -> None:
        """Leave new requests to the successor, let running ones finish, then stop."""
        self._draining, self._successor = True, successor
        await self.adapters.drain(successor.adapters.models if successor is not None else {})
        await self.in_flight.drained()
        await self.stop()

    async def stop(self) -> None:
        """Stop the engine child, and those of adapters. Idempotent."""
        await self.adapters.stop()
        await self.engine.stop()

    # --- state

    @property
    def state(self) -> str:
        """The engine's state; "failed" for a model that could not be loaded, "loading" until it is loaded."""
        if self._loaded:
            return self.engine.state
        return "failed" if self.failure is not None else "loading"

    @property
    def ready(self) -> bool:
        """Whether requests are served now."""
        return self.state == "ready"

    @property
    def summary(self) -> str:
        """What was loaded, for the log."""
        return self.task

    @property
    def listed(self) -> bool:
        """Whether it is in the list of models."""
        return self.ready or (self.announced and self.state == "loading")

    @property
    def with_adapters(self) -> list[Model]:
        """The model and its adapters."""
        return [self, *self.adapters.models.values()]

    @property
    def info(self) -> ModelInfo:
        """What the engine reported about the model; known once it is loaded."""
        return self.engine.info

    async def stats(self) -> EngineStats:
        """The engine's statistics."""
        return await self.engine.stats()

    # --- requests

    @contextlib.contextmanager
    def in_use(self: M) -> Iterator[M]:
        """The model that serves a request for this one: resolved once, and not stopped inside the block.

        Every method that serves a request works on it alone, so no request is served half by a model and half by its
        successor. Raises RequestError.
        """
        serving = self.serving()
        with serving.in_flight:
            yield serving

    def serving(self: M) -> M:
        """This model, or the one that replaced it since the request was parsed. Raises RequestError."""
        model: Model = self
        while model._successor is not None:
            model = model._successor
        if model._draining:
            raise ModelNotFound(f"The model {safe(self.name)!r} is no longer served", param="model")
        if not model._loaded:
            if model.failure is not None:
                raise Unavailable(f"The model could not be loaded. {model.failure.reason}", code="model_not_loaded")
            raise model.engine.unavailable()
        return model.require_task(type(self))

    def require_ready(self: M) -> M:
        """As `serving`, of a model whose engine is ready. Raises RequestError."""
        serving = self.serving()
        if not serving.ready:
            raise serving.engine.unavailable()
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
