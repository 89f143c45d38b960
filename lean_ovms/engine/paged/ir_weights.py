"""A decoder in OpenVINO's form (IR) as a network with paged attention.

`paged_attention_transformation` is private in openvino (`_offline_transformations`; pinned below 2026.5);
openvino_genai and vllm-openvino use the same one. It puts PagedAttentionExtension in the place of each attention and
its KV state; the inputs that it makes are named here and in model_inputs, and nowhere else.
"""

from __future__ import annotations

from ..loading import quiet_imports  # noqa: F401 - first, for its effect

# isort: split
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
from openvino._offline_transformations import paged_attention_transformation

from ..errors import last_line
from ..loading.network_inputs import find_input
from . import positions, wanted_logits
from .network import EMBEDDINGS_INPUT, Miscounting, NotPageable
from .weights_source import NetworkEdit

SLIDING_WINDOW, ALIBI_SLOPES = 10, 11
"""Inputs of PagedAttentionExtension."""


class IrWeights:
    """A weights_source.WeightsSource: the network of a file in OpenVINO's form."""

    def __init__(self, file: Path, edits: Sequence[NetworkEdit] = (), *, trees: bool = False) -> None:
        """Keeps what the network is made of.

        Args:
            file: The network's .xml.
            edits: What changes it, in this order, before its logits are limited to wanted tokens.
            trees: Whether it gets the input TREE_MASK, where its attention allows that.
        """
        self._file = file
        self._edits = edits
        self._trees = trees

    def read(self, core: Any) -> Any:
        """Returns the network with paged attention and logits for wanted tokens. Raises NotPageable."""
        model = paged(core, self._file, trees=self._trees)
        for edit in self._edits:
            edit(core, model)
        wanted_logits.limit(model)
        return model


def takes_embeddings(model: Any) -> bool:
    """Returns whether a network has embeddings as its input in the place of token ids."""
    return find_input(model, EMBEDDINGS_INPUT) is not None


def paged(core: Any, xml: Path, *, trees: bool = False) -> Any:
    """Reads a network and gives it paged attention.

    Args:
        core: The openvino.Core.
        xml: The network's file.
        trees: Whether it gets the input TREE_MASK, where its attention allows that.

    Returns:
        The openvino.Model, with positions as an input.

    Raises:
        NotPageable: This engine cannot compute it.
    """
    model = _transformed(core, xml, connected=False, trees=trees)
    if positions.counted(model):
        model = _transformed(core, xml, connected=True, trees=trees)
    if positions.counted(model):
        raise Miscounting("it counts the positions of its tokens itself, in a way that is not known")
    return model


def _transformed(core: Any, xml: Path, *, connected: bool, trees: bool = False) -> Any:
    """Reads a network and makes its attention paged. Raises NotPageable.

    connected: positions become an input also where the file's network counts them. trees: as in `paged`.
    """
    model = core.read_model(xml)
    if connected:
        positions.connect(model)
    try:
        paged_attention_transformation(model, allow_qq_bias=trees)
    except RuntimeError as error:
        raise NotPageable(f"its attention cannot be paged: {last_line(error)}") from error
    return _transformed(core, xml, connected=connected) if trees and _counts_places(model) else model


def _counts_places(model: Any) -> bool:
    """Returns whether attention depends on a token's place in the cache: by a sliding window, or ALiBi.

    That of an alternative to a draft token is behind all draft tokens.
    """
    nodes = [node for node in model.get_ops() if node.get_type_name() == "PagedAttentionExtension"]
    settings = [node.input_value(port).get_node() for node in nodes for port in (SLIDING_WINDOW, ALIBI_SLOPES)]
    return any(node.get_type_name() != "Constant" or np.any(node.data) for node in settings)


def miscounts(xml: Path) -> bool:
    """Returns whether openvino_genai's continuous batching would silently give all tokens of a step one position.

    False where that has another fault, with a reason of its own.
    """
    try:
        return positions.counted(_transformed(ov.Core(), xml, connected=False))
    except (NotPageable, RuntimeError):
        return False
