"""A served model of any task, as requests use it, and the registry that finds one by its name.

A request resolves a model once; it is loaded if necessary, and kept while requests run. A subclass names its task and
adds the methods that requests call. This module is independent of HTTP, of chat formats, and of how models are loaded.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Generic, Protocol, TypeVar, overload

from ..config import Config
from ..errors import BadRequest, ModelNotFound, RequestError, Unavailable, not_loaded, sleeping
from ..manifest import named
from ..observability.logging import safe
from ..observability.records import GenerationRecord, Metrics, current_record, may_use
from ..repository import model_config
from ..types import Json
from ..util.concurrency import Offload
from .lifecycle import RETRY_S, ModelLifecycle, arrival

M = TypeVar("M", bound="Model")


@dataclass(slots=True)
class UsageRecorder:
    """Measures a request, other than a text generation, while it runs."""

    started: float = field(default_factory=time.monotonic)
    """The time.monotonic() at which the request began."""
    engine_id: int = 0
    """The id of the request in the engine; 0 before it has one."""
    prompt_tokens: int = 0
    """The number of tokens of its input."""
    tokens: int = 0
    """The number of generated tokens."""
    first: float | None = None
    """The time.monotonic() of its first result; None before that."""

    def finished(self, reason: str, error: str) -> GenerationRecord:
        """Returns the record of the finished request, with the finish reason, and the code of the error or ""."""
        now, first = time.monotonic(), self.first
        return GenerationRecord(
            engine_id=self.engine_id,
            prompt_tokens=self.prompt_tokens,
            completion_tokens=self.tokens,
            ttft_s=None if first is None else first - self.started,
            seconds=now - self.started,
            decode_s=0.0 if first is None else now - first,
            finish_reasons=(reason,),
            error=error,
        )


class NotLoaded(Unavailable):
    """Raised if a model's properties are unknown, as nothing has loaded it: status 503 unless the caller waits."""

    def __init__(self, model: Model) -> None:
        """Creates the error for a model, whose `wait_known` waits until it has been loaded."""
        super().__init__("The model is not loaded yet.")
        self.model = model


class Hold(Generic[M]):
    """A context manager for one use of a model, which is loaded on entry and stays loaded until the end."""

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


class Model(ModelLifecycle):
    """A model as requests use it."""

    endpoints: tuple[str, ...] = ()
    """The paths for requests to such models, for error messages."""
    routed_as: str = ""
    """The kind by which routes of other features say that they serve the model (`Route.serves`); empty for none."""
    wrong_task_status: int = 400
    """The status of the error if a request needs a model of another task."""

    @property
    def served_under(self) -> str:
        """The paths for requests to the model, as a phrase for messages. Those of versioned APIs are first."""
        found = (*self.endpoints, *self.config.composition.serving(self.routed_as))
        *others, last = sorted(found, key=lambda path: not path.startswith("/v"))
        return f"{', '.join(others)} and {last}" if others else last

    @property
    def input_modalities(self) -> tuple[str, ...]:
        """The modalities that it reads, as OpenRouter names them."""
        return ("text",)

    @property
    def output_modalities(self) -> tuple[str, ...]:
        """The modalities that it produces, as OpenRouter names them."""
        return ("text",)

    @property
    def context_length(self) -> int:
        """The context length in tokens, read from its files until it has been loaded; 0 if unknown."""
        config = self.directory.config
        return self.info.context_length if self.known else model_config.context_length(model_config.flat(config))

    @property
    def reported(self) -> Json:
        """The properties that the engine of a loaded model has reported, for the list of models."""
        info = self.info
        engine = {"type": info.pipeline, "reason": info.pipeline_reason}
        return {"max_model_len": info.context_length, **({"generates_by": engine} if info.pipeline else {})}

    async def hold(self: M, *, engine: bool = True) -> Hold[M]:
        """Resolves and loads the model for a request to this one; returns a context manager that keeps it.

        Every method that serves a request works on the result alone, so that no request is served partly by a model and
        partly by its successor. An adapter needs no engine of its own. Raises RequestError.
        """
        latest = False
        while True:
            model = self._resolve(latest=latest)
            base = await model._base.hold() if model._base is not None else None
            try:
                if not engine and base is not None:
                    model.in_flight.add()
                elif not await model._acquire():
                    if model is self._resolve(latest=True):
                        raise model.engine.unavailable()
                    if base is not None:
                        base.__exit__(None, None, None)
                    latest = True
                    continue
            except BaseException:
                if base is not None:
                    base.__exit__(None, None, None)
                raise
            return Hold(model, base)

    async def _acquire(self) -> bool:
        """Counts a use of this model, loading it if necessary. Returns False if it is replaced. Raises RequestError."""
        if not self._takes_request():
            return False
        if self.residence is not None and self.admits:
            return await self.residence.hold()
        if self._info is None:
            self.serving()  # raises the reason
        self.in_flight.add()
        return True

    @contextmanager
    def recorded(self, usage: UsageRecorder) -> Iterator[UsageRecorder]:
        """Records the work inside the `with` block in the access line and the metrics, like a generation."""
        record = current_record.get()  # now: a stream ends in another task
        reason, code = "abort", ""
        try:
            yield usage
            reason = "stop"
        except RequestError as error:
            reason, code = "error", error.code or error.kind
            raise
        finally:
            done = usage.finished(reason, code)
            if record is not None:
                record.add(done, self.name)
            self.metrics.generation_finished(self.name, done, None)

    async def wait_known(self) -> None:
        """Waits until `info` is available, loading the model if necessary. Raises RequestError."""
        with await self.hold(engine=False):
            pass

    def keep_loaded(self, seconds: float | None) -> list[str]:
        """Applies Ollama's keep_alive of a request in seconds; returns a warning if it has none. It is thread-safe."""
        residence = (self._base or self).residence
        kept = residence is not None and residence.keep(seconds)
        return [] if kept or seconds is None else ["keep_alive has no effect: this model always stays in memory"]

    def retain(self) -> None:
        """Counts one more use, which lasts beyond the current Hold until `release`."""
        self.in_flight.add()
        if self._base is not None:
            self._base.retain()

    def release(self) -> None:
        self.in_flight.remove()
        if self._base is not None:
            self._base.release()

    def _takes_request(self) -> bool:
        """Returns whether this model serves the current request, or makes it wait; a retired one by Rule 5."""
        if not self.retired:
            return True
        return self.takes(arrival()) and not self._stopped and self.engine.state == "ready"

    def _resolve(self: M, *, latest: bool = False) -> M:
        """Returns this model, or its replacement if it was replaced after the request arrived, or at all (`latest`).

        Raises RequestError if the model is no longer served.
        """
        model: Model = self
        while model.retired and (latest or not model._takes_request()):
            if model._successor is None:
                raise ModelNotFound(f"The model {safe(self.name)!r} is no longer served", param="model")
            model = model._successor
        return model.require_task(type(self))

    def serving(self: M) -> M:
        """Returns this model or its successor, whose `info` is available. Raises RequestError."""
        model = self._resolve()
        if model.known:
            return model
        if self.known:
            return self  # its successor has not been loaded yet, and most likely has the same properties
        if model.failure is not None and not model.on_demand:
            raise not_loaded(model.failure, RETRY_S if model.failure.temporary else None)
        raise NotLoaded(model) if model.admits else model.engine.unavailable()

    def require_ready(self: M) -> M:
        """Returns this model or its successor if it serves requests now or on demand. Raises RequestError."""
        serving = self._resolve()
        if not serving.ready and not (serving.on_demand and serving.state == "failed"):
            raise sleeping() if serving.state == "sleeping" else serving.serving().engine.unavailable()
        return serving

    def require_task(self, kind: type[M]) -> M:
        """Returns this model if it is of this class. Raises RequestError if it has another task."""
        if not isinstance(self, kind):
            raise BadRequest(
                f"The model {safe(self.name)!r} is for {self.task}, not for {kind.task}; use it at {self.served_under}",
                param="model",
                code="wrong_task",
                status=max(kind.wrong_task_status, self.wrong_task_status),
            )
        return self


def make_model(config: Config) -> Model:
    """Creates a model with these options, without loading it. Raises StartError."""
    if config.model_path:
        config.composition.require_format(config.model_dir)
    row = config.composition.task(config.task)
    model: Model = named(row.package, row.model)(config)
    return model


# --- all served models


class ModelRegistry:
    """The served models by name.

    `models` has the order of the model list, without adapters. `unloaded` maps names that are no longer served to their
    state, "UNLOADING" or "END".
    """

    def __init__(self, metrics: Metrics, offload: Offload) -> None:
        """Creates an empty registry of models with these metrics, and with this thread for long work."""
        self.models: dict[str, Model] = {}
        self.unloaded: dict[str, str] = {}
        self._metrics = metrics
        self._offload = offload

    @property
    def visible(self) -> dict[str, Model]:
        """The part of `models` that the API key of the current request may use; without a key all of them."""
        return {name: model for name, model in self.models.items() if may_use(name)}

    @property
    def served(self) -> list[Model]:
        """All visible models and adapters with a name of their own; the adapters of a model come after it."""
        return [one for model in self.models.values() for one in model.with_adapters if may_use(one.name)]

    @property
    def names(self) -> dict[str, Model]:
        """All visible names with their models. Each model's own name comes before its aliases."""
        found = {model.name: model for model in self.served}
        aliases = {alias: model for model in self.models.values() for alias in model.config.served_names[1:]}
        return found | {alias: model for alias, model in aliases.items() if alias not in found and may_use(alias)}

    def default_of(self, kind: type[Model]) -> str:
        """Returns the name of the only model of this class, or else of the only model; "" if there are several."""
        models = self.visible
        names = [name for name, model in models.items() if isinstance(model, kind)] or list(models)
        return names[0] if len(names) == 1 else ""

    @overload
    def get(self, name: str) -> Model: ...

    @overload
    def get(self, name: str, kind: type[M], *, helper: bool = False) -> M: ...

    def get(self, name: str, kind: type[Model] = Model, *, helper: bool = False) -> Model:
        """Returns the model or adapter of this name or alias, and notes it in the record of the current request.

        Args:
            name: The name or the alias.
            kind: The required class. If it is given, the model's properties must be known.
            helper: Whether the model works for another one, which remains in the record.

        Raises:
            ModelNotFound: The model does not exist, or the API key may not use it.
            BadRequest: The model has another task.
            NotLoaded: The model's properties are not known yet.
        """
        model = self.models.get(name) or self.names.get(name)
        if model is None or not (helper or may_use(name)):
            known = ", ".join(self.names) or "none"
            raise ModelNotFound(f"The model {safe(name)!r} does not exist; served models: {known}", param="model")
        if not helper and (record := current_record.get()):
            record.model = model.name
        found = model.require_task(kind)
        if kind is not Model and model.admits and not model.known:
            raise NotLoaded(model)
        return found

    def install(self, model: Model) -> None:
        """Serves a model under its name, replacing a model of the same name."""
        for one in model.with_adapters:
            one.metrics, one.offload = self._metrics, self._offload
        self.models[model.name] = model
        self.unloaded.pop(model.name, None)

    def remove(self, name: str) -> Model:
        """Stops serving a model, lists it as unloading, and returns it. Raises KeyError."""
        model = self.models.pop(name)
        self.unloaded[name] = "UNLOADING"
        return model

    def removed(self, name: str) -> None:
        """Notes that a model returned by `remove` has stopped, unless another one has its name by now."""
        if name in self.unloaded:
            self.unloaded[name] = "END"

    def reorder(self, names: list[str]) -> None:
        """Sets the order of the model list. Unknown names are ignored."""
        self.models = {name: self.models[name] for name in names if name in self.models} | self.models


class Deployment(Protocol):
    """Decides which models are in the registry of a server, and when they are loaded."""

    def __init__(self, config: Config, registry: ModelRegistry, *, make: Callable[[Config], Model]) -> None:
        """Puts the configured models into the registry, without loading them.

        Args:
            config: The options of the server.
            registry: The registry of served models.
            make: Creates a model from its options.

        Raises:
            StartError: The options are not valid.
        """

    @staticmethod
    def of_server(config: Config) -> Config:
        """Returns the options of the server, completed by the files that its options name. Raises StartError."""

    async def check(self) -> None:
        """Checks what can be checked without an engine, before anything is loaded. Raises WrongOptions."""

    async def load(self) -> None:
        """Loads the models that the start needs. Raises StartError if the server cannot start without one of them."""

    async def reload(self) -> bool:
        """Updates the served models to the configuration; returns whether anything changed. Raises StartError."""

    async def watch(self, period_s: float) -> None:
        """Reloads whenever the configuration has changed, every `period_s` seconds, until cancelled."""

    async def stop(self) -> None:
        """Stops every engine. Idempotent."""
