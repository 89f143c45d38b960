"""The served models and adapters by name. Independent of HTTP, and of how models are loaded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar, overload

from ..config import Config
from ..errors import ModelNotFound
from ..observability.logging import safe
from ..observability.records import Metrics, current_record, may_use
from ..util.concurrency import Offload
from .model import Model, NotLoaded

M = TypeVar("M", bound=Model)


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
            known = ", ".join(self.names)
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
