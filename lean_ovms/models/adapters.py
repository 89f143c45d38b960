"""The adapters of a model, as its life knows them: models of their own, which a feature makes.

The paged engine takes adapters with requests: those of one model share its engine. Others do not (openvino-genai's
continuous batching ignores them), and each adapter has an engine of its own. Either is loaded by the first request and
unloaded when idle.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from ..config import Config
from ..manifest import ADAPTER_SET


class AdaptedModel(Protocol):
    """A model that may have adapters: a models.lifecycle.ModelLifecycle, as are its adapters."""

    config: Config
    """The options of the model."""


class AdapterSet(Protocol):
    """The adapters of one model, each served as a model of its own."""

    @property
    def models(self) -> Mapping[str, Any]:
        """The adapters by their names, in the order of the option."""

    @property
    def engine_config(self) -> Config:
        """The options of the model's own engine: it must be of the same kind as those that have an adapter."""

    @property
    def most(self) -> int:
        """How many adapters may be in memory at once; 0: the model has none, and cannot get any."""

    async def check(self) -> None:
        """Checks the files of every adapter. Raises StartError."""

    async def load(self) -> None:
        """Serves the adapters of the model, which has been loaded; no engine is started. Raises StartError."""

    async def unload(self) -> None:
        """Stops all engines; requests load them again, after the model."""

    async def add(self, name: str, path: str, alpha: float | None = None) -> object:
        """Serves an adapter from now on, in place of one of that name.

        Args:
            name: The name under which it is served.
            path: The file or directory of the adapter.
            alpha: The factor of its weights; None: as its files say.

        Raises:
            StartError: There is no such adapter, or it does not fit the model.
        """

    def remove(self, name: str) -> None:
        """Serves an adapter no longer; running requests may finish. Raises KeyError."""

    async def drain(self, successors: Mapping[str, Any]) -> None:
        """Leaves new requests to the successors of the same names, lets running ones finish, then stops."""

    async def stop(self) -> None:
        """Stops all engines. Idempotent."""


class NoAdapterSet:
    """The AdapterSet of a model that has no adapters and cannot get any."""

    most = 0

    def __init__(self, base: AdaptedModel) -> None:
        """Keeps the options of the model."""
        self.models: dict[str, Any] = {}
        self.engine_config = base.config

    async def check(self) -> None:
        """Checks nothing."""

    async def load(self) -> None:
        """Loads nothing."""

    async def unload(self) -> None:
        """Unloads nothing."""

    async def add(self, name: str, path: str, alpha: float | None = None) -> object:
        """Cannot be called: clients may add no adapters here."""
        raise NotImplementedError

    def remove(self, name: str) -> None:
        """Raises KeyError: there is no adapter."""
        raise KeyError(name)

    async def drain(self, successors: Mapping[str, Any]) -> None:
        """Drains nothing."""

    async def stop(self) -> None:
        """Stops nothing."""


def adapters_of(base: AdaptedModel) -> AdapterSet:
    """Returns the adapters of a model. Raises StartError for options that cannot be used."""
    new = base.config.part(ADAPTER_SET)
    found: AdapterSet = NoAdapterSet(base) if new is None else new(base)
    return found
