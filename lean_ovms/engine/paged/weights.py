"""Which source a network is read from: the kind of file that a model has."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from ...repository.gguf import is_gguf
from . import gguf_network
from .ir_weights import IrWeights, takes_embeddings
from .network import NetworkEdit, NotPageable, WeightsSource


def open_weights(file: Path, edits: Sequence[NetworkEdit] = (), *, trees: bool = False) -> WeightsSource:
    """Returns the source of a network; the file is read later.

    Args:
        file: The network's .xml, or a GGUF file.
        edits: What changes the network, in this order, before its logits are limited to wanted tokens.
        trees: Whether it gets the input TREE_MASK, where its attention allows that.

    Raises:
        NotPageable: Networks of this kind of file cannot be changed so.
    """
    if not is_gguf(file):
        return IrWeights(file, [embedding_edit(file.parent), *edits], trees=trees)
    if edits:
        raise NotPageable("the hidden states of a GGUF file's network are unknown")
    return gguf_network.GgufWeights(file)


def embedding_edit(folder: Path) -> NetworkEdit:
    """Returns what puts a folder's networks of embeddings before a language model that has none itself."""
    return partial(_connect, folder)


def _connect(folder: Path, core: Any, model: Any) -> None:
    if takes_embeddings(model):
        from . import input_embeddings  # text models do without

        input_embeddings.connect(model, core, folder)
