"""Reads a decoder in OpenVINO's IR format as a network with paged attention.

`paged_attention_transformation` is private in openvino (`_offline_transformations`; pinned below 2026.5);
openvino_genai and vllm-openvino use the same one. It replaces each attention and its KV state by
PagedAttentionExtension. The names of the inputs that it creates occur only here and in model_inputs.
"""

from __future__ import annotations

from ..loading import quiet_imports  # noqa: F401 - first, for its effect

# isort: split
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
from openvino import opset13 as ops
from openvino._offline_transformations import paged_attention_transformation

from ...errors import last_line
from ...repository import model_config
from .network import (
    ATTENTION,
    EMBEDDINGS_INPUT,
    LOGITS_INPUT,
    Miscounting,
    NetworkEdit,
    NotPageable,
    WeightsSource,
    file_of,
    find_input,
    network_input,
)

SLIDING_WINDOW, ALIBI_SLOPES = 10, 11
"""The positions of two inputs of PagedAttentionExtension."""


class IrWeights:
    """A WeightsSource that reads a network from an IR file."""

    def __init__(self, file: Path, edits: Sequence[NetworkEdit] = (), *, trees: bool = False) -> None:
        """Keeps the file and the edits; `read` reads the network.

        Args:
            file: The network's .xml file.
            edits: The changes to the network, in this order, made before its logits are limited to selected tokens.
            trees: Whether it gets the input TREE_MASK, if its attention allows that.
        """
        self.attention_cap = attention_cap(file.parent)
        """The soft cap of its attention, which exports of optimum-intel lack, unlike torch; 0 for none."""
        self._file = file
        self._edits = edits
        self._trees = trees

    def read(self, core: Any) -> Any:
        """Returns the network with paged attention, computing logits for selected tokens only. Raises NotPageable."""
        model = paged(core, self._file, trees=self._trees)
        for edit in self._edits:
            edit(core, model)
        limit_logits(model)
        return model


def takes_embeddings(model: Any) -> bool:
    """Returns whether a network takes embeddings instead of token ids."""
    return find_input(model, EMBEDDINGS_INPUT) is not None


def paged(core: Any, xml: Path, *, trees: bool = False) -> Any:
    """Reads a network, and converts its attention to paged attention.

    Args:
        core: The openvino.Core.
        xml: The network's file.
        trees: Whether it gets the input TREE_MASK, if its attention allows that.

    Returns:
        The openvino.Model, which takes positions as an input.

    Raises:
        NotPageable: This engine cannot compute it.
    """
    model = _transformed(core, xml, connected=False, trees=trees)
    if counts_positions(model):
        model = _transformed(core, xml, connected=True, trees=trees)
    if counts_positions(model):
        raise Miscounting("it computes the positions of its tokens in an unknown way")
    return model


def _transformed(core: Any, xml: Path, *, connected: bool, trees: bool = False) -> Any:
    """Reads a network, and converts its attention to paged attention.

    Args:
        core: The openvino.Core.
        xml: The network's file.
        connected: Whether positions become an input even if the network in the file computes them itself.
        trees: Whether it gets the input TREE_MASK, if its attention allows that.

    Returns:
        The openvino.Model.

    Raises:
        NotPageable: The attention cannot be converted.
    """
    model = core.read_model(xml)
    if connected:
        connect_positions(model)
    try:
        paged_attention_transformation(model, allow_qq_bias=trees)
    except RuntimeError as error:
        raise NotPageable(f"its attention cannot be converted to paged attention: {last_line(error)}") from error
    return _transformed(core, xml, connected=connected) if trees and _counts_places(model) else model


def _counts_places(model: Any) -> bool:
    """Returns whether attention depends on a token's place in the cache, because of a sliding window or ALiBi.

    Trees of draft tokens do not work with such attention: alternatives to a draft token come after all draft tokens
    there.
    """
    nodes = [node for node in model.get_ops() if node.get_type_name() == ATTENTION]
    settings = [node.input_value(port).get_node() for node in nodes for port in (SLIDING_WINDOW, ALIBI_SLOPES)]
    return any(node.get_type_name() != "Constant" or np.any(node.data) for node in settings)


def miscounts(xml: Path) -> bool:
    """Returns whether openvino_genai would silently give all tokens of a step one position; False if unknown."""
    try:
        return counts_positions(_transformed(ov.Core(), xml, connected=False))
    except (NotPageable, RuntimeError):
        return False


POSITIONS, LONGEST = "position_ids", "max_context_len"
ALL = ("Add", "Concat", "MatMul", "Multiply")
FIRST = ("Broadcast", "Convert", "Gather", "Reshape", "Slice", "Squeeze", "Tile", "Transpose", "Unsqueeze")
SCATTER = ("ScatterNDUpdate",)
"""Kinds of operations, between positions and angles, whose values come from certain of their inputs."""


def counts_positions(model: Any) -> bool:
    """Returns whether anything besides paged attention depends on the length of a step's longest sequence."""
    longest = find_input(model, LONGEST)
    users = longest.output(0).get_target_inputs() if longest is not None else ()
    return any(user.get_node().get_type_name() != ATTENTION for user in users)


def connect_positions(model: Any) -> None:
    """Replaces positions that a network computes itself by the input POSITIONS, [batch, tokens].

    Exports of Qwen3.5 have the input, but do not use it; those of Granite 4 without Mamba have none. Their rotary
    embedding continues from the length of the KV state, which the transformation to paged attention replaces by
    LONGEST, so that all tokens of a step would have the same position (2026.4.1). So this must happen before that
    transformation, which makes the positions an input itself only if it knows the pattern, as in most exports.
    """
    given = find_input(model, POSITIONS)
    if given is None:
        given = network_input(POSITIONS, [-1, -1], np.int64)
        model.add_parameters([given])
    for node in list(_counting(model)):
        values = ops.convert(given, node.get_output_element_type(0).to_string())
        if node.get_output_partial_shape(0).rank.get_length() == 2:
            node.output(0).replace(values.output(0))
            continue
        for rows in [user.get_node() for user in node.output(0).get_target_inputs()]:
            shape = rows.get_output_partial_shape(0)
            if rows.get_type_name() == "Broadcast" and shape.rank == 3 and shape[0].is_static:
                one = ops.unsqueeze(values, np.int64(0))
                rows.output(0).replace(ops.concat([one] * shape[0].get_length(), 0).output(0))
    model.validate_nodes_and_infer_types()


def _counting(model: Any) -> Iterator[Any]:
    """Yields the operations that make rows, [1, tokens] or [1, 1, tokens], of the positions in angles."""
    nodes = [node for node in model.get_ops() if node.get_type_name() in ("Cos", "Sin")]
    seen = set[str]()
    while nodes:
        node = nodes.pop()
        for value in _values(node):
            source = value.get_node()
            if source.get_friendly_name() in seen:
                continue
            seen.add(source.get_friendly_name())
            if _is_row(source):
                yield source
            else:
                nodes.append(source)


def _values(node: Any) -> list[Any]:
    inputs, kind = node.input_values(), node.get_type_name()
    if kind in ALL:
        return list(inputs)
    return [inputs[0], inputs[2]] if kind in SCATTER else inputs[:1] if kind in (*FIRST, "Cos", "Sin") else []


def _is_row(node: Any) -> bool:
    """Returns whether a node adds axes before a list of integers."""
    shape = node.get_output_partial_shape(0)
    made = node.get_type_name() in ("Reshape", "Unsqueeze") and node.input_value(0).get_partial_shape().rank == 1
    ones = shape.rank.is_static and shape.rank.get_length() in (2, 3) and all(size == 1 for size in list(shape)[:-1])
    return made and ones and shape[-1].is_dynamic and bool(node.get_output_element_type(0).is_integral())


def is_constant(output: Any) -> bool:
    """Returns whether an output is that of a constant, possibly converted to another type."""
    node = output.get_node()
    while node.get_type_name() == "Convert":
        node = node.input_value(0).get_node()
    return bool(node.get_type_name() == "Constant")


ELEMENTWISE = ("Add", "Multiply", "Divide", "Tanh", "Convert")
"""Elementwise operations after the last projection: bias, scale and soft cap of the logits."""


def limit_logits(model: Any) -> None:
    """Makes a network compute logits for selected tokens only: of a prompt mostly the last. Raises NotPageable."""
    projection, axis = last_projection(model)
    gather(model, projection.input_value(0), [projection.input(0)], axis)


def last_projection(model: Any) -> tuple[Any, int]:
    """Returns the MatMul that computes the logits, and the token axis of its input. Raises NotPageable."""
    node, axis = model.outputs[0].get_node().input_value(0).get_node(), 0
    while node.get_type_name() != "MatMul":
        kind = node.get_type_name()
        if kind == "Transpose":
            axis = int(node.input_value(1).get_node().data[axis])
        elif kind not in ELEMENTWISE:
            raise NotPageable(f"its last projection was not found: the logits come from {kind}")
        constant = node.input_value(0).get_node().get_type_name() == "Constant"
        node = node.input_value(1 if constant else 0).get_node()
    return node, axis


def gather(model: Any, hidden: Any, readers: list[Any], axis: int) -> Any:
    """Makes some inputs read the hidden states of only those tokens whose indices are in the input LOGITS_INPUT.

    Args:
        model: The network, to which the input is added.
        hidden: The hidden states of all tokens.
        readers: The inputs of operations that read them.
        axis: The token axis of the hidden states.

    Returns:
        The output that the readers are now connected to.
    """
    wanted = ops.parameter([-1], np.int64, LOGITS_INPUT)
    wanted.output(0).get_tensor().set_names({LOGITS_INPUT})
    gathered = ops.gather(hidden, wanted, np.array([axis], np.int64)).output(0)
    for reader in readers:
        reader.replace_source_output(gathered)
    model.add_parameters([wanted])
    model.validate_nodes_and_infer_types()
    return gathered


def open_weights(
    file: Path,
    edits: Sequence[NetworkEdit] = (),
    *,
    trees: bool = False,
    adapted: bool = False,
    exact: bool = False,
    images: bool = False,
) -> WeightsSource:
    """Returns the source of a network, without reading the file yet.

    Args:
        file: The network's .xml file, or the file of the model.
        edits: The changes to the network, in this order, made before its logits are limited to selected tokens.
        trees: Whether it gets the input TREE_MASK, if its attention allows that.
        adapted: Whether it gets inputs for adapters.
        exact: Whether weights may not be rounded for speed.
        images: Whether the network of a file gets the inputs of images; exports have them if they have vision.

    Raises:
        NotPageable: This file format does not support the changes.
    """
    if (single := file_of(file)) is not None:
        return single.weights(edits, trees=trees, adapted=adapted, exact=exact, images=images)
    return IrWeights(file, [embedding_edit(file.parent), *edits], trees=trees and not attention_cap(file.parent))


def attention_cap(folder: Path) -> float:
    """Returns the soft cap of a model's attention scores, from its folder; 0 if it has none."""
    found = model_config.read(folder).get("attn_logit_softcapping")
    return float(found) if isinstance(found, int | float) else 0.0


def embedding_edit(folder: Path) -> NetworkEdit:
    """Returns an edit that puts a folder's embedding networks in front of a language model that takes embeddings."""
    return partial(_connect, folder)


def _connect(folder: Path, core: Any, model: Any) -> None:
    if takes_embeddings(model):
        from . import input_embeddings  # text models do not need it

        input_embeddings.connect(model, core, folder)
