"""A GGUF file as a network, by openvino's GGUF frontend: weights stay in 4 or 8 bits.

The frontend makes a network of one sequence, whose keys and values are inputs and outputs, written by ScatterUpdate.
What computes attention with paged keys and values, or for a batch of texts, is put in its place by `connected`.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from openvino import opset13 as ops
from openvino.frontend import FrontEndManager

from ....engine.errors import last_line
from ....errors import StartError
from .. import header as gguf
from . import exact_positions, merge
from .attention import Attend, Projected

POSITIONS = "inp_pos"
TOKENS = ("inp_tokens", POSITIONS, "inp_out_ids")
"""The frontend's inputs with the ids of tokens, their positions, and the places of those whose logits are wanted."""
WINDOWED = "self_kq_mask_swa"
"""The frontend's mask of layers with a sliding window."""
EXACT_MINIMUMS = "OV_GGUF_Q4_K_ZP_F16", "1"
"""Without it, the frontend rounds the minimums of Q4_K, which changes weights by up to a tenth (root mean square)."""
SINKS = 5
"""The input of ScaledDotProductAttention with the logits of attention sinks."""
QWEN3_MOE = "qwen3moe"
"""The architecture of which the frontend (2026.4.1) rotates neighbours instead of the halves of a head, and does not
let the weights of a token's experts sum to 1."""


def read(path: Path, header: gguf.Header) -> Any:
    """Returns the network of a file. Raises StartError, and RuntimeError from openvino."""
    os.environ.setdefault(*EXACT_MINIMUMS)
    frontend = FrontEndManager().load_by_framework("gguf")
    with merge.whole(path) as file:
        try:
            model = frontend.convert(frontend.load(str(file)))
        except Exception as error:  # the frontend has classes of its own, without a common one
            raise StartError(f"{path} cannot be served: {last_line(error)}; {gguf.EXPORT}") from error
    if header.number("attention.head_count_kv") == 1:
        _tell_heads_from_tokens(model)
    if header.architecture == QWEN3_MOE:
        _correct_qwen3_moe(model)
    return model


def connected(path: Path, header: gguf.Header, inputs: Sequence[Any], attend: Attend) -> Any:
    """Returns the network of a file with inputs and attentions in the place of its own.

    Args:
        path: The file.
        header: Its header.
        inputs: The ids of tokens, their positions, and the places of those whose logits are wanted.
        attend: Computes the attentions, in the order of the layers.

    Raises:
        StartError: The file cannot be served, or its network is of a form that is not known.
        RuntimeError: openvino cannot make the network.
    """
    model = read(path, header)
    for name, values in zip(TOKENS, inputs, strict=True):
        _replace_input(model, name, values)
    for node in model.get_ordered_ops():
        if node.get_type_name() == "ScaledDotProductAttention":
            rows = _projected(node, header)
            shaped = ops.reshape(attend(rows), np.array([1, -1, rows.heads[0], rows.sizes[2]]), False)
            node.output(0).replace(ops.transpose(shaped, np.array([0, 2, 1, 3])).output(0))
    return model


def _replace_input(model: Any, name: str, values: Any) -> None:
    """Puts the numbers of all tokens in the place of an input of the frontend."""
    shaped = ops.reshape(ops.convert(values, "i32"), np.array([1, 1, 1, -1]), False)
    found = next((node for node in model.get_parameters() if node.get_friendly_name() == name), None)
    if found is None:
        raise StartError(f"its network has no input {name}")
    found.output(0).replace(shaped.output(0))
    if name == POSITIONS:
        exact_positions.keep(model, shaped.output(0))


def logits(model: Any) -> list[Any]:
    """Returns the outputs that write no cache."""
    outputs = [node.input_value(0) for node in model.get_results()]
    return [port for port in outputs if port.get_node().get_type_name() != "ScatterUpdate"]


def _projected(node: Any, header: gguf.Header) -> Projected:
    """Returns what an attention is computed of. Raises StartError."""
    written = [_source(node.input_value(port), "ScatterUpdate") for port in (1, 2)]
    shapes = [list(each.get_output_partial_shape(0)) for each in written]  # [1, tokens, heads, size of a head]
    query = node.input_value(0)  # [1, heads, tokens, size of a head]
    heads = [query.get_partial_shape()[1].get_length(), *(shape[2].get_length() for shape in shapes)]
    sizes = [query.get_partial_shape()[3].get_length(), *(shape[3].get_length() for shape in shapes)]
    new = [ops.transpose(ops.convert(query, "f32"), np.array([0, 2, 1, 3]))]
    for each in written:
        if not _source(each.input_value(2), "Convert").get_output_partial_shape(0)[2].is_static:
            raise StartError(
                f"its keys have one head, which openvino's GGUF frontend mistakes for the tokens; {gguf.EXPORT}"
            )
        new.append(ops.convert(each.input_value(2), "f32"))
    mask = _source(node.input_value(3), "Parameter").get_friendly_name()
    return Projected(
        values=[
            ops.reshape(value, np.array([-1, h * s]), False) for value, h, s in zip(new, heads, sizes, strict=True)
        ],
        heads=heads,
        sizes=sizes,
        scale=np.float32(node.input_value(4).get_node().data.item()),
        window=header.number("attention.sliding_window") if mask == WINDOWED else 0,
        sinks=node.input_value(SINKS) if node.get_input_size() > SINKS else None,
    )


def _tell_heads_from_tokens(model: Any) -> None:
    """Gives the one head of keys and of values an axis.

    The frontend (2026.4.1) leaves it out, [1, 1, tokens, size], and multiplies by angles [1, tokens, 1, size].
    """
    for node in model.get_ordered_ops():
        if node.get_type_name() == "MatMul" and node.get_friendly_name().endswith((".Kcur", ".Vcur")):
            readers = list(node.output(0).get_target_inputs())
            size = node.get_output_partial_shape(0)[-1].get_length()
            shaped = ops.reshape(node, np.array([1, -1, 1, size]), False)
            for reader in readers:
                reader.replace_source_output(shaped.output(0))
    model.validate_nodes_and_infer_types()


def _correct_qwen3_moe(model: Any) -> None:
    """Puts what a rotation of neighbours takes for neighbours side by side, and lets weights of experts sum to 1."""
    for node in model.get_ordered_ops():
        readers = list(node.output(0).get_target_inputs()) if node.get_output_size() else []
        if node.get_friendly_name().endswith(("Qcur_normed", "Kcur_normed")):
            half = node.get_output_partial_shape(0)[-1].get_length() // 2
            changed = ops.gather(node, np.arange(2 * half).reshape(2, half).T.reshape(-1), np.int64(-1))
        elif node.get_type_name() == "GatherElements":
            changed = ops.divide(node, ops.reduce_sum(node, np.int64(-1), True))
        else:
            continue
        for reader in readers:
            reader.replace_source_output(changed.output(0))


def _source(port: Any, kind: str) -> Any:
    """Returns the next node of a kind along the first inputs. Raises StartError."""
    node = port.get_node()
    while node.get_type_name() != kind:
        if not node.get_input_size():
            raise StartError(f"its attention cannot be paged: there is no {kind} before {port.get_node().get_name()}")
        node = node.input_value(0).get_node()
    return node
