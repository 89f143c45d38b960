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
from ..header import Header
from ..model_file import header_of
from . import frontend, layers
from .attention import Attend, Projected, masked
from .decoder import building, builds


def read(path: Path, output: str) -> ov.Model:
    """Returns the network of a file. output: logits or last_hidden_state. Raises StartError, and RuntimeError."""
    header = header_of(path)
    ids, mask = (network_input(name, [-1, -1], np.int64) for name in ("input_ids", "attention_mask"))
    shape = ops.shape_of(ids, "i64")
    positions = _counted(ops.gather(shape, np.int64(1), np.int64(0)))
    causal = header.metadata.get(f"{header.architecture}.attention.causal") is not False

    def attend(rows: Projected) -> Any:
        if rows.sinks is not None:
            raise StartError(f"{path} cannot be served: attention sinks of a pooling model are not known")
        return masked(rows, shape, _seen(positions, mask, causal, rows.window))

    if builds(header):
        tokens, places = (ops.reshape(each, np.array([-1]), False) for each in (ids, ops.broadcast(positions, shape)))
        with building(path, header) as decoder:
            found = _by_text(decoder.hidden(tokens, places, attend), shape)
            found = ops.matmul(found, layers.whole(decoder.head()), False, True) if output == "logits" else found
    else:
        head = _by_frontend(
            path, header, [ids, ops.broadcast(positions, shape), _counted(ops.reduce_prod(shape, np.int64(0)))], attend
        )
        found = _by_text(ops.convert(head.input_value(0), "f32"), shape)
        if output == "logits":
            found = ops.matmul(found, head.input_value(1), False, bool(head.get_attributes()["transpose_b"]))
    found.output(0).get_tensor().set_names({output})
    return ov.Model([found.output(0)], [ids, mask], "gguf")


def _by_text(rows: Any, shape: Any) -> Any:
    """Returns rows of all tokens as [texts, tokens, width]."""
    width = rows.get_output_partial_shape(0)[-1].get_length()
    return ops.reshape(rows, ops.concat([shape, ops.constant(np.array([width]))], 0), False)


def _by_frontend(path: Path, header: Header, inputs: list[Any], attend: Attend) -> Any:
    """Returns the operation that makes logits of hidden states, in the network of openvino's frontend.

    Args:
        path: The file.
        header: Its header.
        inputs: The ids of tokens, their positions, and the places of those whose logits are wanted.
        attend: Computes the attentions.

    Raises:
        StartError: The network is of a form that is not known.
    """
    head = frontend.logits(frontend.connected(path, header, inputs, attend))[0].get_node()
    if head.get_type_name() != "MatMul":
        raise StartError(f"{path} cannot be served: its logits are computed by {head.get_type_name()}")
    return head


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
