"""LoRA adapters of single requests in the network: y += ((x A') * choice) B' behind each linear layer.

A and B are inputs: the weights of all adapters in memory one after the other, along the axis of ranks. `choice`
[tokens, ranks] has an adapter's scale in the columns of the adapter that the token's request names, and 0 in others.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from openvino import opset13 as ops

from .adapters import CHOICE, down_name, up_name

MODULE = "__module."


def insert(model: Any) -> dict[str, tuple[int, int]]:
    """Add the inputs for every linear layer that has a name, as {layer: (width of x, width of y)}."""
    choice = _input(CHOICE, [-1, -1])
    inputs, layers = [choice], dict[str, tuple[int, int]]()
    for node in list(model.get_ops()):
        layer = _layer(node)
        if not layer or layer in layers:
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
    return layers


def _layer(node: Any) -> str:
    """The name of the linear layer that a node computes, as peft has it; "" if it is none."""
    name = node.get_friendly_name()
    if node.get_type_name() != "MatMul" or not name.startswith(MODULE) or "/" not in name:
        return ""
    shapes = [value.get_partial_shape() for value in (node.input_value(0), node.output(0))]
    if "layers." not in name or any(shape[-1].is_dynamic for shape in shapes):
        return ""
    return str(name.removeprefix(MODULE).partition("/")[0])


def _input(name: str, shape: list[int]) -> Any:
    made = ops.parameter(shape, np.float32, name)
    made.output(0).get_tensor().set_names({name})
    return made
