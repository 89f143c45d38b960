"""Which source a network is read from: the kind of file that a model has."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from . import engine_file
from .ir_weights import IrWeights, takes_embeddings
from .network import NetworkEdit, WeightsSource


def open_weights(
    file: Path, edits: Sequence[NetworkEdit] = (), *, trees: bool = False, adapted: bool = False
) -> WeightsSource:
    """Returns the source of a network; the file is read later.

    Args:
        file: The network's .xml, or the model's file.
        edits: What changes the network, in this order, before its logits are limited to wanted tokens.
        trees: Whether it gets the input TREE_MASK, where its attention allows that.
        adapted: Whether it gets inputs of adapters.

    Raises:
        NotPageable: Networks of this kind of file cannot be changed so.
    """
    if (single := engine_file.of(file)) is not None:
        return single.weights(edits, trees=trees, adapted=adapted)
    return IrWeights(file, [embedding_edit(file.parent), *edits], trees=trees)


def embedding_edit(folder: Path) -> NetworkEdit:
    """Returns what puts a folder's networks of embeddings before a language model that has none itself."""
    return partial(_connect, folder)


def _connect(folder: Path, core: Any, model: Any) -> None:
    if takes_embeddings(model):
        from . import input_embeddings  # text models do without

        input_embeddings.connect(model, core, folder)
