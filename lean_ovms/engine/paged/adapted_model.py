"""A model that takes adapters, compiled twice: with their operations, and without for steps in which no row has one.

Both compute on the same inputs and KV cache. The operations of adapters are many and small: 35 layers of the demo model
get 140 more and 71 conversions of weights, whatever the adapters' ranks, also 0; they double the time of its steps.
The price is the memory of the weights once more, so it is for networks that are not large.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from .model import PagedModel


class AdaptedModel:
    """A network.Network on two of the same model, with the attributes of PagedModel."""

    def __init__(self, adapted: PagedModel, plain: PagedModel) -> None:
        """adapted: the one that takes adapters."""
        self._adapted = adapted
        self._plain = self._running = plain
        self.adapting = False
        self.layers, self.fixed = adapted.layers, adapted.fixed
        self.vocab_size, self.hybrid = adapted.vocab_size, adapted.hybrid
        self.block_bytes, self.threads = adapted.block_bytes, adapted.threads

    @property
    def inputs(self) -> frozenset[str]:
        """Of the one with adapters, which has all of the other's."""
        return self._adapted.inputs

    def allocate(self, blocks: int, rows: int) -> None:
        """Make the KV cache of both."""
        self._adapted.allocate(blocks, rows)
        self._plain.share_cache(self._adapted)

    def tensor(self, name: str, shape: list[int]) -> Any:
        """As PagedModel's, for both."""
        made = self._adapted.tensor(name, shape)
        if name in self._plain.inputs:
            self._plain.set_tensor(name, made)
        return made

    def infer(self, prompts: bool) -> NDArray[np.float32]:
        """As PagedModel's."""
        self._running = self._chosen()
        return self._running.infer(prompts)

    def start(self, prompts: bool) -> None:
        """As PagedModel's."""
        self._running = self._chosen()
        self._running.start(prompts)

    def wait(self) -> NDArray[np.float32]:
        """The logits of what was started, as PagedModel's."""
        return self._running.wait()

    def copy_block(self, source: int, target: int) -> None:
        """Keys and values of a block, in all layers."""
        self._adapted.copy_block(source, target)

    def copy_state(self, source: int, target: int) -> None:
        """What one sequence keeps beside its blocks, to another's row."""
        self._adapted.copy_state(source, target)

    def clear_state(self, row: int) -> None:
        self._adapted.clear_state(row)

    def _chosen(self) -> PagedModel:
        return self._adapted if self.adapting else self._plain
