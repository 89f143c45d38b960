"""Makes the positions of tokens an input of the network where the exported one counts them itself.

Exports of Qwen3.5 have the input position_ids and do not use it: the rotary embedding of each of the three rows (time,
height, width) counts on from the length of the KV state. With paged attention there is no such length. openvino's
transformation puts `max_context_len` in its place, and all tokens of a step get one position (2026.4.1).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from openvino import opset13 as ops

INPUT, LONGEST = "position_ids", "max_context_len"
ATTENTION = "PagedAttentionExtension"


def connect(model: Any) -> None:
    """Use the input in the place of counted positions [rows, batch, tokens]. Before attention is paged."""
    given = next((p for p in model.get_parameters() if INPUT in p.output(0).get_names()), None)
    if given is None:
        return
    for node in [node for node in model.get_ordered_ops() if _counted(node)]:
        rows = node.get_output_partial_shape(0)[0].get_length()
        one = ops.convert(ops.unsqueeze(given, np.int64(0)), node.get_output_element_type(0).to_string())
        node.output(0).replace(ops.concat([one] * rows, 0).output(0))
    model.validate_nodes_and_infer_types()


def counted(model: Any) -> bool:
    """Something but attention depends on the longest text of a step. After attention is paged."""
    longest = next((p for p in model.get_parameters() if LONGEST in p.output(0).get_names()), None)
    users = longest.output(0).get_target_inputs() if longest is not None else ()
    return any(user.get_node().get_type_name() != ATTENTION for user in users)


def _counted(node: Any) -> bool:
    """A Broadcast of a Range, alike in each row."""
    if node.get_type_name() != "Broadcast" or node.get_output_partial_shape(0).rank != 3:
        return False
    source = node.input_value(0).get_node()
    one = source.get_type_name() == "Reshape" and source.input_value(0).get_node().get_type_name() == "Range"
    return one and node.get_output_partial_shape(0)[0].is_static
