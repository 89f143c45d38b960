"""Makes the positions of tokens an input of the network where the exported one counts them itself.

Exports of Qwen3.5 have the input position_ids and do not use it; those of Granite 4 without Mamba have none. Their
rotary embedding counts on from the length of the KV state, which does not exist with paged attention: openvino's
transformation puts `max_context_len` in its place, and all tokens of a step have one position (2026.4.1). Where it
knows the pattern, as in most exports, it makes the positions an input itself. openvino_genai's continuous batching uses
the same transformation.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from openvino import opset13 as ops

from ..loading.network_inputs import find_input, network_input

INPUT, LONGEST = "position_ids", "max_context_len"
ATTENTION = "PagedAttentionExtension"
ALL = ("Add", "Concat", "MatMul", "Multiply")
FIRST = ("Broadcast", "Convert", "Gather", "Reshape", "Slice", "Squeeze", "Tile", "Transpose", "Unsqueeze")
SCATTER = ("ScatterNDUpdate",)
"""Operations from positions to angles: by which of their inputs values come in."""


def counted(model: Any) -> bool:
    """Returns whether something besides (paged) attention depends on the longest sequence of a step."""
    longest = find_input(model, LONGEST)
    users = longest.output(0).get_target_inputs() if longest is not None else ()
    return any(user.get_node().get_type_name() != ATTENTION for user in users)


def connect(model: Any) -> None:
    """Puts the input in the place of counted positions, [batch, tokens]. For models before attention is paged."""
    given = find_input(model, INPUT)
    if given is None:
        given = network_input(INPUT, [-1, -1], np.int64)
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
    """Yields the operations that make rows, [1, tokens] or [1, 1, tokens], of the numbers that become angles."""
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
    """Returns whether a node puts axes before a list of whole numbers."""
    shape = node.get_output_partial_shape(0)
    made = node.get_type_name() in ("Reshape", "Unsqueeze") and node.input_value(0).get_partial_shape().rank == 1
    ones = shape.rank.is_static and shape.rank.get_length() in (2, 3) and all(size == 1 for size in list(shape)[:-1])
    return made and ones and shape[-1].is_dynamic and bool(node.get_output_element_type(0).is_integral())
