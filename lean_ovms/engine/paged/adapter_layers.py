"""LoRA adapters of single requests in the network: y += ((x A') * choice) B' behind each linear layer.

A and B are inputs: the weights of all adapters in memory one after the other, along the axis of ranks. `choice`
[tokens, ranks] has an adapter's scale in the columns of the adapter that the token's request names, and 0 in others.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from openvino import opset13 as ops

from .adapters import CHOICE, down_name, up_name

MODULE = "__module."


class Layers(NamedTuple):
    """adapted: (width of x, width of y) by name. fixed: layers that adapters may name and that take none here."""

    adapted: dict[str, tuple[int, int]]
    fixed: frozenset[str]


def insert(model: Any) -> Layers:
    """Add the inputs for every linear layer that has a name and computes one row for each token."""
    choice = _input(CHOICE, [-1, -1])
    inputs, layers, fixed = [choice], dict[str, tuple[int, int]](), set[str]()
    for node in list(model.get_ops()):
        layer = _layer(node)
        if not layer or layer in layers:
            continue
        if not _by_token(node):
            fixed.add(layer)
            continue
        x = node.input_value(0)
        width, height = (int(o.get_partial_shape()[-1].get_length()) for o in (x, node.output(0)))
        layers[layer] = width, height
        down, up = _input(down_name(layer), [-1, width]), _input(up_name(layer), [height, -1])
        inputs += [down, up]
        deep = x.get_partial_shape().rank.get_length() == 3
        spread = ops.unsqueeze(choice, np.int64(1)) if deep else choice
        low = ops.multiply(ops.matmul(x, down, False, True), spread)
        consumers = list(node.output(0).get_target_inputs())
        total = ops.add(node.output(0), ops.matmul(low, up, False, True))
        for consumer in consumers:
            consumer.replace_source_output(total.output(0))
    model.add_parameters(inputs)
    model.validate_nodes_and_infer_types()
    return Layers(layers, frozenset(fixed))


def _layer(node: Any) -> str:
    """The name of the linear layer that a node computes, as peft has it; "" if it is none."""
    name = node.get_friendly_name()
    if node.get_type_name() != "MatMul" or not name.startswith(MODULE) or "/" not in name:
        return ""
    return str(name.removeprefix(MODULE).partition("/")[0])


def _by_token(node: Any) -> bool:
    """Whether it multiplies [tokens, width] or [tokens, 1, width] with a matrix. The last projection does not: it gets
    the tokens alone whose logits are wanted.
    """
    x, weights, y = (value.get_partial_shape() for value in (*node.input_values(), node.output(0)))
    if any(shape.rank.is_dynamic or shape[-1].is_dynamic for shape in (x, weights, y)):
        return False
    if weights.rank.get_length() != 2 or not x[0].is_dynamic or "layers." not in node.get_friendly_name():
        return False
    rank = x.rank.get_length()
    return bool(rank == 2 or (rank == 3 and x[1].is_static and x[1].get_length() == 1))


def _input(name: str, shape: list[int]) -> Any:
    made = ops.parameter(shape, np.float32, name)
    made.output(0).get_tensor().set_names({name})
    return made
