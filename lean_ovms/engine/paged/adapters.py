"""Declares what the paged engine asks of a feature that keeps adapters: weights that requests add to those of the
model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class AdapterWeights(Protocol):
    """Weights that a request adds to those of the model."""

    @property
    def key(self) -> str:
        """A text that no other adapter has, nor had."""

    @property
    def scale(self) -> float:
        """The factor of the weights."""

    @property
    def rank(self) -> int:
        """The greatest rank of its layers."""

    @property
    def layers(self) -> Mapping[str, tuple[NDArray[np.float32], NDArray[np.float32]]]:
        """The two matrices of each layer, by the name of the layer."""


class AdapterProvider:
    """Keeps adapters, and puts those that sequences use into the network. This one has none."""

    ranks = 1
    """The columns of the input that chooses adapters: the ranks of all adapters that are in the network."""

    def get(self, text: str) -> AdapterWeights | None:
        """Returns the adapter of a protocol.Submit, which may be read from its file first; None for "".

        Raises EngineFailure.
        """
        return None

    def acquire(self, adapter: AdapterWeights | None) -> bool:
        """Counts one more sequence with this adapter; False if the network has no room for the adapter now."""
        return True

    def release(self, adapter: AdapterWeights | None) -> None:
        """Counts one sequence less with this adapter."""

    def name(self, text: str) -> str:
        """Returns the name of the adapter of a protocol.Submit."""
        return text

    def columns(self, adapter: AdapterWeights) -> slice:
        """Returns which of the columns an adapter has as long as a sequence uses it."""
        return slice(0, 0)


class AdapterInputs(Protocol):
    """Makes adapters inputs of a network."""

    def insert(self, model: Any, kind: Any) -> None:
        """Adds the inputs of adapters to an openvino.Model.

        Args:
            model: The network, whose attention is paged.
            kind: The element type in which the network computes.

        Raises:
            NotPageable: No layer of the network can take an adapter.
        """

    def provider(self, network: Any) -> AdapterProvider:
        """Returns what puts adapters into a model.PagedModel that was made with these inputs."""
