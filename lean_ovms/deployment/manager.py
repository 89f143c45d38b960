"""The models of a server while it runs: brings those that are served to those that are wished for.

A model that changes is loaded beside the old one, which serves until the new one is ready and then finishes what it has
begun. One that does not load leaves the others, and what it should have replaced, as they are. Knows no HTTP: what it
serves lies on a shelf, which is the app.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from ..config import Config
from ..errors import StartError
from ..models.text_model import Model
from .desired import DesiredState, ModelSpec, Stat, stat, wish

log = logging.getLogger("lean_ovms.models")


ALL_CACHES_PERCENT = 50
"""Most of the free memory that the KV caches of several models take together, where none has a size of its own."""


class Shelf(Protocol):
    """Where served models lie. withdrawn: names that are no longer served, and "UNLOADING" or "END"."""

    models: dict[str, Model]
    unloaded: dict[str, str]

    def install(self, model: Model) -> None:
        """Serve model under its name."""

    def reorder(self, names: list[str]) -> None:
        """The order of the model list."""


class ModelManager:
    """Plan it, load it, and perhaps watch it; stop it in any case."""

    def __init__(
        self,
        config: Config,
        shelf: Shelf,
        *,
        read: Callable[[Config], DesiredState] = wish,
        make: Callable[[Config], Model] = Model,
    ) -> None:
        """Raises StartError when it cannot be known what to serve."""
        self._config = config
        self._shelf = shelf
        self._read = read
        self._make = make
        self._wish = read(config)
        self._seen = dict(self._wish.files)
        self._served: dict[str, ModelSpec] = {}  # what the models on the shelf were made of
        self._reloading: asyncio.Task[bool] | None = None
        self._next: asyncio.Task[bool] | None = None  # the reload that has not read anything yet
        self._retiring: set[asyncio.Task[None]] = set()
        self._stopped = False
        for wanted in self._wish.models:
            self._install(wanted)

    async def load(self) -> None:
        """Load all models, side by side. Raises StartError for one that is required."""
        models = [(wanted, self._shelf.models[wanted.name]) for wanted in self._wish.models]
        failures = await asyncio.gather(*(self._fill(wanted, model) for wanted, model in models))
        for (_, model), failure in zip(models, failures, strict=True):
            if failure is None or self._shelf.models.get(model.name) is not model:
                continue  # served, or no longer wished for like that
            if self._wish.required:
                raise failure
            log.error("%s cannot be served: %s", model.name, failure)

    async def reload(self) -> bool:
        """Read the configuration again and serve it; whether anything changed. One at a time.

        Raises StartError: a configuration that cannot be understood changes nothing, and a model that does not load
        leaves what it should have replaced.
        """
        if self._stopped:
            raise StartError("the server is stopping", reason="The server is shutting down.")
        if self._next is None:
            self._next = asyncio.get_running_loop().create_task(self._reload_after(self._reloading))
            self._next.add_done_callback(lambda task: task.cancelled() or task.exception())  # perhaps all have left
        return await asyncio.shield(self._next)  # a client that leaves must not stop a load halfway

    async def _reload_after(self, running: asyncio.Task[bool] | None) -> bool:
        """A reload under way may have read the files before they were what whoever asks now knows."""
        if running is not None:
            await asyncio.wait([running])
        self._reloading, self._next = self._next, None
        return await self._reload()

    async def watch(self, period_s: float) -> None:
        """Reload whenever one of the files has changed; for ever."""
        while True:
            await asyncio.sleep(period_s)
            if not self._seen or await asyncio.to_thread(self._look) == self._seen:
                continue
            try:
                await self.reload()
            except StartError:
                continue  # it is in the log
            except Exception:  # a fault of ours: no reason to end what is served
                log.exception("the changed configuration cannot be served")

    async def stop(self) -> None:
        """Stop every engine, also of models that are on their way in or out. Idempotent."""
        self._stopped = True
        tasks = (self._next, self._reloading, *self._retiring)
        running = [task for task in tasks if task is not None and not task.done()]
        for task in running:
            task.cancel()
        if running:
            await asyncio.wait(running)
        await asyncio.gather(*(model.stop() for model in self._shelf.models.values()))

    # --- one reload

    async def _reload(self) -> bool:
        self._seen = await asyncio.to_thread(self._look)  # also if it cannot be understood: said once
        try:
            self._wish = await asyncio.to_thread(self._read, self._config)
        except StartError as error:
            log.error("the configuration stays as it is: %s", error)
            raise
        self._seen = dict(self._wish.files)
        wanted = {one.name: one for one in self._wish.models}
        gone = [name for name in self._shelf.models if name not in wanted]
        for name in gone:
            self._withdraw(name)
        changed = [one for one in wanted.values() if self._differs(one)]
        failures = await asyncio.gather(*(self._bring(one) for one in changed))
        self._shelf.reorder(list(wanted))
        if failed := [str(failure) for failure in failures if failure is not None]:
            raise StartError("; ".join(failed), reason="A model could not be loaded.")
        return bool(gone or changed)

    def _differs(self, wanted: ModelSpec) -> bool:
        """It is not served, or not as it is wished."""
        model = self._shelf.models.get(wanted.name)
        return model is None or model.failure is not None or self._served.get(wanted.name) != wanted

    def _look(self) -> dict[Path, Stat]:
        return {path: stat(path) for path in self._seen}

    async def _bring(self, wanted: ModelSpec) -> StartError | None:
        """Serve wanted, in place of what has its name now; why not."""
        name = wanted.name
        old = self._shelf.models.get(name)
        if old is None or not old.ready:
            failure = await self._fill(wanted, self._install(wanted))
        elif wanted == self._served.get(name):
            failure = old.failure = None  # what could not replace it is no longer wished for
        elif wanted.problem is not None:
            failure = old.failure = wanted.problem
        else:
            failure = await self._replace(old, wanted)
        if failure is not None:
            log.error("%s cannot be served%s: %s", name, " as it is configured now" if old else "", failure)
        elif old is not None:
            log.info("%s is served as it is configured now", name)
        return failure

    async def _replace(self, old: Model, wanted: ModelSpec) -> StartError | None:
        """Load beside the old one, then swap."""
        model = self._made(wanted)
        try:
            await model.load()
        except StartError as error:
            old.failure = error
            await model.stop()
            return error
        except BaseException:
            await model.stop()
            raise
        self._served[wanted.name] = wanted
        self._shelf.install(model)
        self._begin_retiring(old, model)
        return None

    # --- parts of it

    def _made(self, wanted: ModelSpec) -> Model:
        """A model that leaves the others their share of the memory."""
        many = sum(not one.config.cache_size for one in self._wish.models)
        share = max(1, min(wanted.config.cache_memory_percent, ALL_CACHES_PERCENT // max(many, 1)))
        model = self._make(replace(wanted.config, cache_memory_percent=share))
        model.announced = wanted.announced
        return model

    def _install(self, wanted: ModelSpec) -> Model:
        """Put a model on the shelf that is still to be loaded; what lies there under its name serves nobody."""
        old = self._shelf.models.get(wanted.name)
        model = self._made(wanted)
        model.failure = wanted.problem
        self._served[wanted.name] = wanted
        self._shelf.install(model)
        if old is not None:
            self._begin_retiring(old, model)
        return model

    async def _fill(self, wanted: ModelSpec, model: Model) -> StartError | None:
        """Load what _install has put there; why that failed."""
        if wanted.problem is None:
            try:
                await model.load()
            except StartError as error:
                return error
        return wanted.problem

    def _withdraw(self, name: str) -> None:
        model = self._shelf.models.pop(name)
        self._served.pop(name, None)
        self._shelf.unloaded[name] = "UNLOADING"
        log.info("%s is no longer served", name)
        self._begin_retiring(model, None)

    def _begin_retiring(self, model: Model, successor: Model | None) -> None:
        task = asyncio.get_running_loop().create_task(self._retire(model, successor))
        self._retiring.add(task)
        task.add_done_callback(self._retiring.discard)

    async def _retire(self, model: Model, successor: Model | None) -> None:
        try:
            await model.drain(successor)
        finally:
            await model.stop()
        if successor is None and self._shelf.unloaded.get(model.name):
            self._shelf.unloaded[model.name] = "END"
