"""The LoRA adapters whose weights are in the network, and the choice of one for each token.

Weights are inputs of the network (`adapter_layers`), so an adapter is loaded between two steps, without compiling.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ....engine.paged.block_manager import KEY_BYTES
from ....engine.paged.network import AdapterProvider, AdapterWeights, Network, Part
from ..files import misfit

Weights = NDArray[np.float32]
Sizes = Mapping[str, tuple[int, int]]
"""Layers by name, each with the width of x and of y."""


def down_name(layer: str) -> str:
    """Returns the name of the input [layers * ranks, width] with the A of all adapters for a group of layers."""
    return f"lora_A.{layer}"


def up_name(layer: str) -> str:
    """Returns the name of the input [height, ranks] that has the B of all adapters for a layer."""
    return f"lora_B.{layer}"


@dataclass(frozen=True, slots=True, eq=False)
class Adapter:
    """The weights of one adapter."""

    key: str
    """A text that adapters with other weights or other names do not have."""
    scale: float
    """The factor of what the adapter adds to the output of a layer."""
    layers: Mapping[str, tuple[Weights, Weights]]
    """The matrices A [rank, width] and B [height, rank] of each layer, by the name of the layer."""

    @property
    def digest(self) -> bytes:
        """A hash of the weights and the scale, computed at each use."""
        found = hashlib.blake2b(repr(self.scale).encode(), digest_size=KEY_BYTES)
        for layer, matrices in sorted(self.layers.items()):
            for matrix in matrices:
                found.update(f"{layer}{matrix.shape}{matrix.dtype}".encode())
                found.update(np.ascontiguousarray(matrix).data)
        return found.digest()


def combined(key: str, adapters: Sequence[Adapter]) -> Adapter:
    """Returns an adapter that adds what several ones add.

    Args:
        key: The key of the result.
        adapters: The adapters.
    """
    strongest = max((abs(adapter.scale) for adapter in adapters), default=0.0) or 1.0
    found: dict[str, list[tuple[Weights, Weights]]] = {}
    for adapter in adapters:
        for layer, (down, up) in adapter.layers.items():
            found.setdefault(layer, []).append((down, up * np.float32(adapter.scale / strongest)))
    layers = {
        layer: (np.concatenate([down for down, _ in pairs]), np.concatenate([up for _, up in pairs], axis=1))
        for layer, pairs in found.items()
    }
    return Adapter(key, strongest, layers)


def fits(adapter: Adapter, layers: Sizes, fixed: frozenset[str]) -> str:
    """Returns why a network cannot take an adapter, or "" if it can.

    Args:
        adapter: The adapter. Layers that it does not change, as A or B is zero, may be missing in the network.
        layers: The layers of the network that take adapters, with the widths of their inputs and outputs.
        fixed: The layers of the network that take no adapters.
    """
    adapted = {name: (down.shape[1], len(up)) for name, (down, up) in adapter.layers.items()}
    wrong = misfit(
        adapted,
        layers.keys(),
        layers,
        lambda: [name for name, pair in adapter.layers.items() if all(part.any() for part in pair)],
        fixed,
    )
    return wrong and f"it {wrong}"


class AdapterTable(AdapterProvider):
    """The adapters whose weights are in a network. A full one replaces an adapter that no sequence uses."""

    def __init__(self, network: Network, groups: Iterable[Sizes], most: int) -> None:
        """Writes the inputs without any adapter.

        Args:
            network: The network that has inputs for adapters.
            groups: The layers that take adapters, with the widths of inputs and outputs; a group shares its input.
            most: The most adapters whose weights are in the network at once.
        """
        self._network = network
        self._groups = tuple(groups)
        self._most = most
        self._users: dict[AdapterWeights, int] = {}  # the least recently used adapter comes first
        self._columns: dict[AdapterWeights, slice] = {}
        self.ranks = 1
        self._write()

    def acquire(self, adapter: AdapterWeights | None) -> bool:
        """Counts one more sequence with an adapter. Returns False if there is no room for the adapter now."""
        if adapter is None:
            return True
        if adapter not in self._users:
            if len(self._users) >= self._most:
                idle = next((one for one, users in self._users.items() if not users), None)
                if idle is None:
                    return False
                del self._users[idle]
            self._users[adapter] = 0
            self._write()
        self._users[adapter] += 1
        return True

    def release(self, adapter: AdapterWeights | None) -> None:
        """Counts one sequence less with an adapter."""
        if adapter is not None:
            self._users[adapter] = self._users.pop(adapter) - 1

    def columns(self, adapter: AdapterWeights) -> slice:
        """Returns the columns of an adapter in the input ADAPTER_CHOICE, which it has while a sequence uses it."""
        return self._columns[adapter]

    def _write(self) -> None:
        """Writes the weights of all adapters again, after which their columns may have changed."""
        at, self._columns = 0, {}
        for adapter in self._users:
            begin, at = at, at + max((len(down) for down, _ in adapter.layers.values()), default=1)
            self._columns[adapter] = slice(begin, at)
        self.ranks = max(1, at)
        for layers in self._groups:
            first = next(iter(layers))
            downs: list[Part] = []
            for place, (layer, (_, height)) in enumerate(layers.items()):
                ups: list[Part] = []
                for adapter, columns in self._columns.items():
                    if layer in adapter.layers:
                        low, high = adapter.layers[layer]
                        downs.append((place * self.ranks + columns.start, 0, low))
                        ups.append((0, columns.start, high))
                self._network.write(up_name(layer), (height, self.ranks), ups)
            self._network.write(down_name(first), (len(layers) * self.ranks, layers[first][0]), downs)
