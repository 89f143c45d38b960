"""The adapters that requests name: read from their files, kept as long as they are used, and put into the network."""

from __future__ import annotations

import logging
from typing import Any

from ....config import EngineConfig
from ....engine.paged.network import Network, NotPageable
from ....errors import EngineFailure, StartError
from ..feature import LoraOptions
from . import adapter_layers, reading
from .adapters import Adapter, AdapterTable, fits

log = logging.getLogger(__name__)


class LoraInputs:
    """A paged.network.AdapterInputs: the inputs of LoRA adapters."""

    def __init__(self, most: int) -> None:
        """Keeps how many adapters may be in the network at once."""
        self._most = most
        self._layers = adapter_layers.Layers((), frozenset())

    def insert(self, model: Any, kind: Any) -> None:
        """Implements AdapterInputs.insert."""
        self._layers = adapter_layers.insert(model, kind)
        if not self._layers.groups:
            raise NotPageable("its linear layers have no names by which adapters could be matched")

    def provider(self, network: Network) -> LoraAdapters:
        """Implements AdapterInputs.provider."""
        return LoraAdapters(network, self._layers, self._most)


def new_inputs(config: EngineConfig) -> LoraInputs:
    """Returns what gives a network the inputs of adapters."""
    return LoraInputs(config.of(LoraOptions).max_loras)


class LoraAdapters(AdapterTable):
    """The weights of the adapters that requests named last, and those in the network."""

    def __init__(self, network: Network, layers: adapter_layers.Layers, most: int) -> None:
        """Puts no adapter into the network yet.

        Args:
            network: The network, which has the inputs of adapters.
            layers: Its layers that take adapters, and those that do not.
            most: How many adapters are kept, and how many are in the network at once.
        """
        super().__init__(network, layers.groups, most)
        self._layers = {layer: sizes for group in layers.groups for layer, sizes in group.items()}
        self._fixed = layers.fixed
        self._read: dict[str, Adapter] = {}

    def get(self, text: str) -> Adapter | None:
        """Implements AdapterProvider.get."""
        if not text:
            return None
        adapter = self._read.pop(text, None)
        if adapter is None:
            try:
                adapter = Adapter(text, *reading.read(text))
            except StartError as error:
                log.error("an adapter cannot be loaded: %s", error)
                raise EngineFailure("The adapter could not be loaded.") from error
            if wrong := fits(adapter, self._layers, self._fixed):
                log.error("an adapter cannot be loaded: %s", wrong)
                raise EngineFailure(f"The adapter could not be loaded: {wrong}.")
        self._read[text] = adapter
        while len(self._read) > self._most:
            del self._read[next(iter(self._read))]
        return adapter

    def name(self, text: str) -> str:
        """Implements AdapterProvider.name."""
        return reading.name(text)
