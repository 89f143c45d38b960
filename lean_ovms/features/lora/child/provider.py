"""Reads adapters that requests name from files, keeps them while they are used, and adds them to the network."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

from ....config import EngineConfig
from ....engine.paged.network import Network, NotPageable
from ....errors import EngineFailure, StartError
from ....repository import model_config
from ....types import Json
from .. import modules
from ..feature import ADAPTED, FIXED, LoraOptions
from . import adapter_layers, reading
from .adapters import Adapter, AdapterTable, combined, fits

log = logging.getLogger(__name__)


class LoraInputs:
    """Adds the inputs of LoRA adapters to networks."""

    def __init__(self, most: int, base: Json) -> None:
        """Keeps the most adapters that may be in the network at once, and the model's config.json."""
        self._most = most
        self._base = base
        self._layers = adapter_layers.Layers((), frozenset())

    def insert(self, model: Any, kind: Any) -> None:
        """Adds the inputs of adapters to the linear layers of a network."""
        self._layers = adapter_layers.insert(model, kind)
        if not self._layers.groups:
            raise NotPageable("its linear layers have no names, which LoRA adapters need")

    def provider(self, network: Network) -> LoraAdapters:
        """Returns the provider of adapters for a network to which the inputs were added."""
        return LoraAdapters(network, self._layers, self._most, self._base)


def new_inputs(config: EngineConfig) -> LoraInputs:
    """Makes the object that adds the inputs of adapters to networks, by the options."""
    return LoraInputs(config.of(LoraOptions).max_loras, model_config.read(config.model_dir))


class LoraAdapters(AdapterTable):
    """Provides adapters: the weights of those that were used last, and the ones in the network."""

    def __init__(self, network: Network, layers: adapter_layers.Layers, most: int, base: Json) -> None:
        """Begins without adapters in the network.

        Args:
            network: The network, which has the inputs of adapters.
            layers: The layers of the network that take adapters, and those that do not.
            most: The most adapters that are kept, and that are in the network at once.
            base: The config.json of the model.
        """
        super().__init__(network, layers.groups, most)
        self._layers = {layer: sizes for group in layers.groups for layer, sizes in group.items()}
        self._fixed = layers.fixed
        self.report = {ADAPTED: self._layers, FIXED: sorted(layers.fixed)}
        self._read: dict[str, Adapter] = {}
        """The adapters of single modules that were read last."""
        self._made: dict[str, Adapter] = {}
        """The adapters of requests that were used last."""
        self._base = base

    def get(self, text: str) -> Adapter | None:
        """Returns the adapter for the text of one module or several, read from files if it is not kept; None for "".

        Its key has the names and a digest of the weights: if a file is overwritten and read again, prompts that
        were cached with its earlier weights are not found.
        """
        if not text:
            return None
        adapter = self._made.pop(text, None)
        if adapter is None:
            parts = [self._part(module) for module in modules.parse(text)]
            key = "\n".join((reading.name(text), *(f"{part.key} {part.scale}" for part in parts)))
            adapter = replace(parts[0], key=key) if len(parts) == 1 else combined(key, parts)
        _keep(self._made, text, adapter, self._most)
        return adapter

    def _part(self, module: modules.LoraModule) -> Adapter:
        """Returns the adapter of a module, whose file is read once for all scales. Raises EngineFailure."""
        text = modules.dumps(replace(module, scale=1.0))
        adapter = self._read.pop(text, None)
        if adapter is None:
            try:
                adapter = Adapter("", *reading.read(text, self._base))
            except StartError as error:
                log.error("an adapter could not be loaded: %s", error)
                raise EngineFailure("The adapter could not be loaded.") from error
            adapter = replace(adapter, key=adapter.digest.hex())
            if wrong := fits(adapter, self._layers, self._fixed):
                log.error("an adapter could not be loaded: %s", wrong)
                raise EngineFailure(f"The adapter could not be loaded: {wrong}.")
        _keep(self._read, text, adapter, self._most)
        return replace(adapter, scale=module.scale * adapter.scale)

    def name(self, key: str) -> str:
        """Returns the first line of a key: the names of its adapters, with the scales of those whose scale is not 1."""
        return key.partition("\n")[0]


def _keep(adapters: dict[str, Adapter], text: str, adapter: Adapter, most: int) -> None:
    """Keeps an adapter as the one used last, and at most this number of adapters."""
    adapters[text] = adapter
    while len(adapters) > most:
        del adapters[next(iter(adapters))]
