"""A GGUF file as the network of a pooling model, of the same form as optimum-cli exports: a batch of padded texts.

The tokens of a batch are one row for all layers, and divided into texts for the attention alone. Padding is at the
right, so that a causal model does not see it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
from openvino import opset13 as ops

from ....engine.loading.network_inputs import network_input
from ....errors import StartError
from ..model_file import header_of
from . import frontend
from .frontend import Attention


def read(path: Path, output: str) -> ov.Model:
    """Returns the network of a file. output: logits or last_hidden_state. Raises StartError, and RuntimeError."""
    header = header_of(path)
    model = frontend.read(path, header)
    ids, mask = (network_input(name, [-1, -1], np.int64) for name in ("input_ids", "attention_mask"))
    shape = ops.shape_of(ids, "i64")
    positions = _counted(ops.gather(shape, np.int64(1), np.int64(0)))
    frontend.replace_input(model, "inp_tokens", ids)
    frontend.replace_input(model, "inp_pos", ops.broadcast(positions, shape))
    frontend.replace_input(model, "inp_out_ids", _counted(ops.reduce_prod(shape, np.int64(0))))
    causal = header.metadata.get(f"{header.architecture}.attention.causal") is not False
    for attention in frontend.attentions(model, header):
        if attention.sinks is not None:
            raise StartError(f"{path} cannot be served: attention sinks of a pooling model are not known")
        _replace(attention, shape, _seen(positions, mask, causal, attention.window))
    head = frontend.logits(model)[0].get_node()
    if head.get_type_name() != "MatMul":
        raise StartError(f"{path} cannot be served: its logits are computed by {head.get_type_name()}")
    width = head.input_value(0).get_partial_shape()[-1].get_length()
    sizes = ops.concat([shape, ops.constant(np.array([width]))], 0)
    found = ops.reshape(ops.convert(head.input_value(0), "f32"), sizes, False)
    if output == "logits":
        found = ops.matmul(found, head.input_value(1), False, bool(head.get_attributes()["transpose_b"]))
    found.output(0).get_tensor().set_names({output})
    return ov.Model([found.output(0)], [ids, mask], "gguf")


def _replace(attention: Attention, shape: Any, seen: Any) -> None:
    """Puts an attention in the place that sees the tokens of its own text alone."""
    parts = []
    for rows, heads, size in zip(attention.rows, attention.heads, attention.sizes, strict=True):
        sizes = ops.concat([shape, ops.constant(np.array([heads, size]))], 0)
        part = ops.transpose(ops.reshape(rows, sizes, False), np.array([0, 2, 1, 3]))
        parts.append(_repeated(part, attention.heads[0] // heads))
    query, key, value = parts
    found = ops.scaled_dot_product_attention(query, key, value, seen, ops.constant(attention.scale))
    width = np.array([-1, attention.heads[0] * attention.sizes[2]])
    attention.replace(ops.reshape(ops.transpose(found, np.array([0, 2, 1, 3])), width, False))


def _repeated(part: Any, times: int) -> Any:
    """Returns keys or values [texts, heads, tokens, size of a head] with each head as often as queries share it."""
    if times == 1:
        return part
    order = np.repeat(np.arange(part.get_output_partial_shape(0)[1].get_length()), times)
    return ops.gather(part, ops.constant(order), np.int64(1))


def _seen(positions: Any, mask: Any, causal: bool, window: int) -> Any:
    """Returns which tokens [texts or 1, 1, tokens, tokens] each token sees."""
    if not causal:
        return ops.convert(ops.unsqueeze(mask, np.array([1, 2])), "boolean")
    back = ops.subtract(ops.unsqueeze(positions, np.int64(1)), ops.unsqueeze(positions, np.int64(0)))
    seen = ops.greater_equal(back, np.int64(0))
    if window:
        seen = ops.logical_and(seen, ops.less(back, np.int64(window)))
    return ops.unsqueeze(seen, np.array([0, 1]))


def _counted(stop: Any) -> Any:
    """Returns the numbers from 0 to below a scalar."""
    return ops.range(np.int64(0), stop, np.int64(1), "i64")
