"""The life of a served model: loading, unloading, replacing and stopping it.

A start, a request, a reload, an operator or a wake-up loads a model; an idle time, another model's need of memory, an
operator or sleep unloads it. In each case its phase changes only along these arrows:

                      load                        it has loaded
     UNLOADED ──────────────────▶ LOADING ──────────────────────────▶ LOADED
        ▲                            │                                   │
        ├────────────────────────────┘                                   │
        │    it does not load, or is told to stop                        │ unload
        │                                                                │
        └──────────────────────── UNLOADING ◀────────────────────────────┘
             its engine has ended

Rule 1. At most one load or unload of a model is in progress. A call for the opposite waits until it has ended.
Rule 2. Requests use LOADED models only, and are counted while they do. A model in use is not unloaded, except by a
        sleep that aborts requests.
Rule 3. A request for a model that is not LOADED gets an error, or waits in the model's Residence if the queue has room.
        A waiting request has one of three outcomes: it may use the model; it is redirected to the successor of a
        retired model; or it gets an error, since the load has failed, the server sleeps or stops, or not enough memory
        became free in time.
Rule 4. A failed load is not repeated for a while. Until then, requests get its error.
Rule 5. A model that is about to be unloaded is closed to new requests. Those that are using it already may use it
        again; otherwise the unload and the request would wait for each other.
Rule 6. A model that has a successor, or is no longer served, is retired: it is closed for good, and never loaded again.
        When its last request has ended, its engine is stopped, which is the only other way from LOADED to UNLOADED. If
        requests load the successor, the load waits until the retired model is out of memory.
Rule 7. If an engine dies, its client restarts it (engine/client/engine.py). Meanwhile the model stays LOADED or
        LOADING, and operators see the engine's state. Files that have been replaced are read again, since the new
        engine has read them.

Adapters have the same life cycle. This module knows no requests except those that wait for a model, no HTTP, no task.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast

from ..config import Config, listed
from ..config.options import DIRECTORY, PRIVATE_DIRECTORY
from ..engine.client.engine import engine_of
from ..errors import BadRequest, StartError, WrongOptions
from ..manifest import ADAPTER_SET
from ..observability.records import Metrics, current_record
from ..repository import model_config, model_file
from ..repository.model_config import weights_bytes
from ..repository.model_dir import MISSING, ModelDir
from ..repository.model_dir import read as read_model_dir
from ..types.engine import EngineStats, ModelInfo, Vocabulary
from ..util.concurrency import InFlight, Offload

if TYPE_CHECKING:
    from typing_extensions import Self

    from ..engine.client.interface import ModelEngine

log = logging.getLogger("lean_ovms.models")

UNLOADED, LOADING, LOADED, UNLOADING = "unloaded", "loading", "loaded", "unloading"
"""The phases of a model."""
RETRY_S = 10.0
"""The seconds after a failed load in which requests get its error; the next request after that loads again."""
PROGRESS_S = 10.0
"""The seconds between two log lines about a model that is still loading."""
WEIGHTS_FACTOR = 1.2
"""The memory of a loaded model without its KV cache, as a multiple of the size of its weights."""
DIRECTORY_MODES = {DIRECTORY: 0o777, PRIVATE_DIRECTORY: 0o700}
"""The permissions with which the directories named by options are created, by the kind of path."""
NO_VOCABULARY = Vocabulary(pieces=[], exact=False)
"""The vocabulary of a model that has not been loaded."""
NO_STATS = EngineStats(running=0, queued=0, steps=0)
"""The statistics of an engine that does not run."""


class Residence(Protocol):
    """Loads a model when requests need it, and makes them wait until it is loaded."""

    @property
    def asleep(self) -> bool:
        """Whether requests are refused until the server is woken up."""

    @property
    def closed_since(self) -> float | None:
        """The time.monotonic() since when the model is closed to requests; None if it is open."""

    @property
    def waiting(self) -> int:
        """The number of requests that wait until the model is loaded."""

    @property
    def seconds_left(self) -> float | None:
        """The seconds for which the model stays in memory without another request; None if it has no such limit."""

    async def hold(self) -> bool:
        """Counts a use of the model in in_flight, once loaded; returns False if it is replaced. Raises RequestError."""

    def keep(self, seconds: float | None) -> bool:
        """Sets the seconds that the model stays loaded after its last request; returns False if it is never unloaded.

        None restores the configured time; negative means until the memory is needed. It is thread-safe.
        """

    async def unload(self) -> None:
        """Unloads the model and its group after their requests. Raises RequestError if all of them sleep."""

    def send_on(self) -> None:
        """Ends the waiting of all requests, since the model is retired; they go to its successor."""

    def leave(self) -> None:
        """Removes the model, which is retired and whose engine has been stopped. Idempotent."""


async def _no_room(error: StartError) -> bool:
    return False


class Residency:
    """The phases and transitions of a model. A subclass implements `_load` and `_unload`."""

    def __init__(self, config: Config) -> None:
        """Begins UNLOADED, without a Residence, so that only its owner can load it."""
        self.config = config
        self.name: str = config.served_name
        self.phase = UNLOADED
        self.in_flight = InFlight()
        self.failure: StartError | None = None
        """The reason why the last attempt to load it, or its replacement, failed."""
        self.retired_since: float | None = None
        """The time.monotonic() at which it was retired."""
        self.residence: Residence | None = None
        """Decides when it is loaded and unloaded; None if its owner does."""

    # --- the arrows

    async def load(self, make_room: Callable[[StartError], Awaitable[bool]] = _no_room) -> None:
        """Loads the model, again after a failure if `make_room`, awaited with it, returns True. Raises StartError."""
        self.phase = LOADING
        try:
            try:
                await self._load()
            except StartError as error:
                if not await make_room(error):
                    raise
                await self._load()
        except BaseException as error:
            self.phase = UNLOADED
            if isinstance(error, StartError):
                self.failure = error
            raise
        self.phase, self.failure = LOADED, None

    async def unload(self) -> None:
        """Unloads the model. No request may be using it. It can be loaded again by a request or its owner."""
        self.phase = UNLOADING
        try:
            await self._unload()
        finally:
            self.phase = UNLOADED

    async def _load(self) -> None:
        """Loads the model, or raises StartError and leaves nothing of it in memory."""
        raise NotImplementedError

    async def _unload(self) -> None:
        """Frees its memory."""
        raise NotImplementedError

    def retire(self) -> None:
        """Refuses new requests from now on, and sends those that wait to the successor. Idempotent."""
        if self.retired_since is None:
            self.retired_since = time.monotonic()
            if self.residence is not None:
                self.residence.send_on()

    # --- the phase

    @property
    def loaded(self) -> bool:
        """Whether it is in memory, and not about to be unloaded."""
        return self.phase == LOADED

    @property
    def changing(self) -> bool:
        """Whether a load or an unload is in progress."""
        return self.phase in (LOADING, UNLOADING)

    @property
    def state(self) -> str:
        """The phase, or "sleeping"."""
        asleep = self.residence is not None and self.residence.asleep
        return "sleeping" if asleep and not self.changing else self.phase

    @property
    def retired(self) -> bool:
        """Whether it is retired: its requests go to another model, or to none."""
        return self.retired_since is not None

    @property
    def memory_bytes(self) -> int:
        """The estimated memory that it takes when loaded, in bytes."""
        return 0

    def takes(self, arrived: float) -> bool:
        """Returns whether a request that arrived at this time.monotonic() may use the model now (Rule 5)."""
        since = self.retired_since
        if since is None and self.residence is not None:
            since = self.residence.closed_since
        return self.loaded and (since is None or arrived <= since)


def arrival() -> float:
    """Returns the time.monotonic() at which the current task's request arrived."""
    record = current_record.get()
    return record.started if record is not None else time.monotonic()


class Preparation(Protocol):
    """The work of a feature for a model before requests may use it."""

    def check(self) -> None:
        """Checks what can be checked before the engine is started; called in a thread. Raises WrongOptions."""

    async def compute(self) -> None:
        """Does the feature's work with the engine, which is ready. Raises StartError."""


class AdapterSet:
    """The adapters of one model, each served as a model of its own. This base class has none, and none can be added.

    The paged engine applies adapters per request, so those of one model share its engine. Other engines do not
    (openvino-genai's continuous batching ignores them), so each adapter has an engine of its own. Either is loaded by
    the first request and unloaded when idle.
    """

    def __init__(self, base: ModelLifecycle) -> None:
        """Reads the adapter options of the model. Raises StartError if they are not valid."""
        self.config = base.config
        self.models: Mapping[str, Any] = {}
        """The adapters by name, in the order of the option."""

    @property
    def engine_config(self) -> Config:
        """The options of the model's own engine, which must be of the same kind as the engines of its adapters."""
        return self.config

    @property
    def most(self) -> int:
        """The most adapters that may be in memory at once; 0 if the model has none, and none can be added."""
        return 0

    def applied(self, adapter: str, scales: Iterable[tuple[int, float]]) -> str:
        """Returns the `adapter` of a Submit: its own, or those with these or the usual scales. Raises BadRequest."""
        if scales:
            raise BadRequest("lora: only the base model of adapters applies several; name it as model", param="lora")
        return adapter

    async def check(self) -> None:
        """Checks the files of every adapter. Raises StartError."""

    async def load(self) -> None:
        """Serves the adapters of the loaded model, without starting an engine yet. Raises StartError."""

    async def unload(self) -> None:
        """Stops the engines of all adapters. Requests load them again, after the model."""

    async def add(self, name: str, path: str, alpha: float | None = None) -> object:
        """Adds an adapter, replacing one of the same name.

        Args:
            name: The name under which it is served.
            path: The file or directory of the adapter.
            alpha: The factor of its weights; None for that in its files.

        Raises:
            StartError: The adapter does not exist, or does not fit the model.
        """
        raise NotImplementedError

    def remove(self, name: str) -> None:
        """Stops serving an adapter; running requests may finish. Raises KeyError."""
        raise KeyError(name)

    async def drain(self, successors: Mapping[str, Any]) -> None:
        """Directs new requests to the successors of the same names, waits for running ones, and stops all engines."""

    async def stop(self) -> None:
        """Stops the engines of all adapters. Idempotent."""


class ModelLifecycle(Residency):
    """A model with a name and an engine. Once it is retired, its successor, if any, takes new requests."""

    task: str = ""
    """The name of the model's task."""

    def __init__(
        self,
        config: Config,
        engine: ModelEngine | Callable[[], ModelEngine] | None = None,
        base: ModelLifecycle | None = None,
    ) -> None:
        """Creates a model that is not loaded.

        Args:
            config: The options of this model.
            engine: Its only engine, or a function that creates one for each load; None to create them by the options.
            base: The model to which this adapter belongs; None if it is not an adapter.

        Raises:
            StartError: An adapter has the name of the model.
        """
        super().__init__(config)
        self.parent: str = base.name if base else ""
        """The name of the model to which this adapter belongs; empty if it is not an adapter."""
        self.created = int(time.time())
        self.directory = ModelDir()
        self._base = cast("Self | None", base)  # AdapterSet makes one of its own kind
        self.metrics = Metrics()
        self.offload = Offload(config.max_body_bytes)
        self.adapters: AdapterSet = (config.part(ADAPTER_SET) or AdapterSet)(self)
        self._make_engine = engine if callable(engine) else lambda: engine or engine_of(self.adapters.engine_config)
        self.engine = self._make_engine()
        self.announced = False
        """Whether it is in the list of models even while it loads."""
        self.on_demand = False
        """Whether requests load it."""
        self.known_info: ModelInfo | None = None
        """The properties that are known before it is loaded."""
        self.adapter = ""
        """The `adapter` of each protocol.Submit, if the base model's engine serves this adapter; otherwise empty."""
        self.preparations: list[Preparation] = []
        """The features' work for it before requests may use it."""
        self.adapter_text: Callable[[], str] | None = None
        """Makes the `adapter` of a protocol.Submit for one load; None if no engine can be shared."""
        self._info: ModelInfo | None = None
        self._vocabulary = NO_VOCABULARY
        self._loads = 0
        self._checked = False
        self._restarts = 0
        self._stopped = False
        self._successor: Self | None = None

    # --- life

    async def check(self) -> None:
        """Checks what can be checked without an engine, before the server listens. Raises WrongOptions."""
        try:
            await self._read_directory()
            if not self.config.without_model:
                await asyncio.to_thread(self._check_weights)
        except StartError as error:
            raise WrongOptions(str(error), reason=error.reason) from error
        self._checked = True

    async def open(self) -> None:
        """Checks what can be checked without an engine, and lets requests load the model. Raises StartError."""
        base = self._base
        info, vocabulary = (base.info, base.vocabulary) if base is not None else (self.known_info, NO_VOCABULARY)
        try:
            await self._read_once()
            if info is not None:
                await asyncio.to_thread(self._import)
                if not self.loaded:
                    self._update(info, vocabulary)
        except StartError as error:
            self.failure, self.on_demand = error, False
            raise
        self.on_demand = True

    async def _load(self) -> None:
        """Reads the directory and starts an engine, also again after `unload`. Raises StartError."""
        if self.adapter_text is not None and self._base is not None and "adapters" in self._base.info.capabilities:
            # The next load reads its files anew.
            self.engine, self.adapter = self._base.engine, self.adapter_text()
        elif self._loads:
            self._restarts += self.engine.restarts
            self.engine = self._make_engine()
        self._loads += 1
        if not self.config.without_model:
            log.info("loading %s from %s on %s", self.name, self.config.model_dir, self.config.target_device)
        began, progress = time.monotonic(), asyncio.create_task(self._report_progress())
        try:
            await self._start()
            await self.adapters.load()
        except StartError:
            await self._stop_engine()
            raise
        finally:
            progress.cancel()
        self.on_demand = self.residence is not None
        self.metrics.model_loaded(self.name, time.monotonic() - began)
        log.info("%s: %s", self.name, self.summary)

    async def _report_progress(self) -> None:
        began = time.monotonic()
        while True:
            await asyncio.sleep(PROGRESS_S)
            log.info("%s is still loading after %.0f s", self.name, time.monotonic() - began)

    async def _start(self) -> None:
        await self._read_once()
        if self._stopped:
            raise StartError("the model was stopped before it was loaded")
        if not self.adapter:
            self.engine.on_restart = self._follow_restart
        await asyncio.gather(asyncio.to_thread(self._import), *([] if self.adapter else [self.engine.start()]))
        self._update(self.engine.info, self.engine.vocabulary)
        for preparation in self.preparations:
            await preparation.compute()

    async def _follow_restart(self) -> None:
        """Reads the model's files again after a restart of the engine, and serves changed ones. Raises StartError."""
        info, vocabulary, before = self.engine.info, self.engine.vocabulary, self.directory
        with model_file.reading_once(self.config):
            self.directory = (
                before if self.config.without_model else await asyncio.to_thread(read_model_dir, self.config)
            )
        same = self.directory == before and vocabulary is self._vocabulary
        if same and info == self._info:
            return
        try:
            await asyncio.to_thread(self._import)
            for model in self.with_adapters if "adapters" in info.capabilities else [self]:
                model.directory = self.directory
                model._update(info, vocabulary)
        except BaseException:
            self.directory = before  # so that the next restart finds the files changed, too
            raise
        if not same:
            log.warning("the files of %s have changed; serving the new ones: %s", self.name, self.summary)

    def _update(self, info: ModelInfo, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._prepare(info)
        self._info = info

    def _check_weights(self) -> None:
        if short := model_config.short_file(self.config.model_dir, needed_only=True):
            raise StartError(short, reason=MISSING)

    async def _read_once(self) -> None:
        """Reads the directory and checks the adapters, unless `check` has just done it."""
        if not self._checked:
            await self._read_directory()
        self._checked = False

    async def _read_directory(self) -> None:
        if self.config.without_model:
            return
        with model_file.reading_once(self.config):
            self.directory = await asyncio.to_thread(read_model_dir, self.config)
            await asyncio.to_thread(self._check_options)
            for preparation in self.preparations:
                await asyncio.to_thread(preparation.check)
            await self.adapters.check()

    def _check_options(self) -> None:
        """Checks the options as far as possible without an engine; called in a thread. Raises WrongOptions."""
        for row in listed(self.config.without):
            mode = DIRECTORY_MODES.get(row.metadata["path"])
            if mode is not None and (directory := self.config.value(row.name)):
                try:
                    Path(directory).mkdir(mode=mode, parents=True, exist_ok=True)
                except OSError as error:
                    raise WrongOptions(f"--{row.name} {directory}: {error.strerror}") from None

    def _import(self) -> None:
        """Imports the modules that `_prepare` needs; called in a thread while the engine loads."""

    def _prepare(self, info: ModelInfo) -> None:
        """Builds what requests need besides the engine, which is ready. Raises StartError."""

    async def _unload(self) -> None:
        """Stops the engine, and those of the adapters."""
        await self.adapters.unload()
        await self._stop_engine()
        self.metrics.model_unloaded(self.name)

    def leave_to(self, successor: Self | None) -> None:
        """Retires this model: the successor, if any, takes all requests that arrive from now on."""
        self._successor = successor
        self.retire()

    async def drain(self, successor: Self | None = None) -> None:
        """Retires this model in favour of a successor, waits for running requests, and stops the engine."""
        self.leave_to(successor)
        await self.adapters.drain(successor.adapters.models if successor is not None else {})
        while self.in_flight:
            await self.in_flight.drained()
        await self.stop()

    async def stop(self) -> None:
        """Stops the engine, and those of the adapters. Idempotent."""
        self._stopped = True
        await self.adapters.stop()
        await self._stop_engine()
        if self.residence is not None and self.retired:
            self.residence.leave()

    async def _stop_engine(self) -> None:
        if not self.adapter:  # otherwise the base model's
            await self.engine.stop()

    # --- state

    @property
    def state(self) -> str:
        """The engine's state while the model is loaded, otherwise its phase; "failed" after a failed load, "sleeping"
        while the server sleeps, and "loading" until the first load has ended."""
        state = super().state
        if self.loaded:
            return self.engine.state if state == LOADED else state
        if self.on_demand and self.residence is not None and not self._stopped:
            return "failed" if self.failure is not None and state == UNLOADED else state
        return "failed" if self.failure is not None else LOADING

    @property
    def ready(self) -> bool:
        """Whether requests are served now, including by loading the model on demand."""
        return self.state == "ready" or (self.on_demand and self.state in ("unloaded", "loading", "unloading"))

    @property
    def admits(self) -> bool:
        """Whether requests wait until the model is loaded, instead of getting status 503."""
        return self.on_demand or (self.failure is None and self.residence is not None)

    @property
    def known(self) -> bool:
        """Whether `info` is available, because the model is or has been loaded."""
        return self._info is not None

    @property
    def waiting(self) -> int:
        """The number of requests that wait until the model is loaded."""
        return self.residence.waiting if self.residence is not None else 0

    @property
    def restarts(self) -> int:
        """The number of engine processes that were started to replace one that died."""
        return 0 if self.adapter else self._restarts + self.engine.restarts

    @property
    def memory_bytes(self) -> int:
        """The estimated memory that it takes when loaded, in bytes, without its KV cache."""
        if self.config.without_model:
            return 0
        return int(WEIGHTS_FACTOR * weights_bytes(self.config.model_dir)) * self.engine.processes

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
        """The properties that the engine reported, available once the model has been loaded."""
        return self.engine.info if self.loaded or self._info is None else self._info

    @property
    def vocabulary(self) -> Vocabulary:
        """The engine's vocabulary, available once the model has been loaded."""
        return self.engine.vocabulary if self.loaded else self._vocabulary

    @property
    def tokenizer(self) -> ModelEngine:
        """The engine that encodes and decodes texts; for an adapter that of its base model."""
        return self.engine if self.loaded or self._base is None else self._base.engine

    async def stats(self) -> EngineStats:
        """Returns the engine's statistics; zeros for an on-demand model that is not loaded, and for an adapter."""
        return NO_STATS if self.adapter or (self.on_demand and not self.loaded) else await self.engine.stats()
