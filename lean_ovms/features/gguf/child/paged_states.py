"""OpenVINO's operations with a state for each sequence, of which Python's package has no functions.

`paged_attention_transformation` puts them in the place of a pattern with a state, so a tiny network with the pattern is
transformed, and the operation taken from it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import openvino as ov
from openvino import opset6
from openvino import opset13 as ops
from openvino._offline_transformations import paged_attention_transformation

from ....engine.loading.network_inputs import network_input
from .layers import END, Floats

STATES = ("la.block_indices", "la.block_indices_begins", "la.past_lens", "la.cache_interval")
"""The inputs with the slots of sequences' states."""
VALUES, TABLE, WEIGHTS, BEGINS, SLOTS = 0, 1, 2, 4, 5
"""The inputs of a convolution; behind SLOTS are those of STATES."""


def convolution(values: Any, weights: Floats, begins: Any, slots: list[Any], number: int) -> tuple[Any, Any]:
    """Returns the sums of each token's values and those of the tokens before it, multiplied by weights, and the table.

    Args:
        values: The values [tokens, channels].
        weights: The weights [channels, tokens], the token's own last.
        begins: The input that says where sequences begin among the tokens.
        slots: The inputs STATES.
        number: The number of the convolution in the network, which is in the name of its table of states.
    """
    channels, length = weights.shape
    model = _with_convolution(channels, length)
    [found] = [node for node in model.get_ops() if node.get_type_name() == "PagedCausalConv1D"]
    table = found.input_value(TABLE).get_node()
    table.set_friendly_name(f"conv_state_table.{number}")
    table.output(0).get_tensor().set_names({f"conv_state_table.{number}"})
    given = {VALUES: values, WEIGHTS: ops.constant(weights[:, None]), BEGINS: begins}
    for place, value in (given | dict(enumerate(slots, SLOTS))).items():
        found.input(place).replace_source_output(value if isinstance(value, ov.Output) else value.output(0))
    return found.output(0), table


def _with_convolution(channels: int, length: int) -> Any:
    """Returns a network with an operation of this size."""
    tokens = network_input("input_ids", [-1, -1], np.int64)
    rows = ops.gather(np.zeros((1, channels), np.float32), ops.convert(tokens, "i32"), np.int32(0))
    texts = ops.gather(ops.shape_of(tokens), np.array([0]), np.int64(0))
    none = ops.broadcast(np.float32(0), ops.concat([texts, np.array([channels, length])], 0))
    past = opset6.read_value(none, "past", ov.Type.f32, ov.PartialShape([-1, channels, length]))
    both = ops.concat([past, ops.transpose(rows, np.array([0, 2, 1]))], -1)
    sums = ops.group_convolution(both, np.zeros((channels, 1, 1, length), np.float32), [1], [0], [0], [1])
    newest, kept = (
        ops.slice(value, *(np.array([each]) for each in (start, END, 1, 2)))
        for value, start in ((sums, -1), (both, -length))
    )
    heads = ops.unsqueeze(rows, np.int64(1))
    attended = ops.scaled_dot_product_attention(heads, heads, heads)  # without one nothing is transformed
    outputs = [newest.output(0), attended.output(0)]
    model = ov.Model(outputs, [opset6.assign(kept, "past")], [tokens], "convolution")
    paged_attention_transformation(model)
    return model
