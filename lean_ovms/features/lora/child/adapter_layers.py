"""Adds LoRA adapters, one for each request, to a network: y += ((x A') * choice) B' after each linear layer.

A and B are inputs with the weights of all adapters in memory, concatenated along the axis of ranks. `choice` [tokens,
ranks] has an adapter's scale in the columns of the adapter that the token's request uses, and 0 in the others.

So an adapter cannot affect tokens of other requests, whatever its weights are: A and B are finite (`files`), and x A'
is clamped to finite numbers, because 0 times infinity would be NaN for every token of the step.

Layers that multiply the same x (q, k, v; gate, up) are a group, for which the A of all layers is one input and x A' one
product. For it, x is reshaped to [tokens, width], since [tokens, 1, width] would be a product for each token: with the
demo model, a step of 32 tokens took 1.4 times as long that way, and one of 256 tokens twice as long (CPU time,
2026-11).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from openvino import opset13 as ops

from ....engine.paged.network import ADAPTER_CHOICE, network_input
from .adapters import Sizes, down_name, up_name

MODULE = "__module."
MOST = 65504.0
"""The limit of the absolute value of x A': the greatest number in half precision, which the network may use."""


class Layers(NamedTuple):
    """The linear layers of a network that adapters change."""

    groups: tuple[Sizes, ...]
    """The layers that take adapters, in groups."""
    fixed: frozenset[str]
    """The layers that adapters may name, but that do not take adapters."""


def insert(model: Any, kind: Any) -> Layers:
    """Adds the inputs of adapters to every linear layer that has a name and computes one row for each token.

    Their element type should be that in which the network computes, as another one would be converted in each step.
    """
    choice = network_input(ADAPTER_CHOICE, [-1, -1], np.float32)
    inputs, choices, found = [choice], {1: choice}, list[Sizes]()
    groups, fixed = _groups(model)
    for nodes in groups:
        x = next(iter(nodes.values())).input_value(0)
        sizes = {layer: (_width(x), _width(node.output(0))) for layer, node in nodes.items()}
        found.append(sizes)
        down = network_input(down_name(next(iter(sizes))), [-1, _width(x)], kind)
        ups = [network_input(up_name(layer), [height, -1], kind) for layer, (_, height) in sizes.items()]
        inputs += [down, *ups]
        if len(ups) not in choices:
            choices[len(ups)] = ops.concat([choice] * len(ups), 1)
        deep = x.get_partial_shape().rank.get_length() == 3
        flat = ops.squeeze(x, np.int64(1)) if deep else x
        product = ops.matmul(flat, _float(down), False, True)
        low = ops.multiply(ops.clamp(product, -MOST, MOST), choices[len(ups)])
        for part, up, node in zip(ops.split(low, np.int64(1), len(ups)).outputs(), ups, nodes.values(), strict=True):
            more = ops.matmul(part, _float(up), False, True)
            consumers = list(node.output(0).get_target_inputs())
            total = ops.add(node.output(0), ops.unsqueeze(more, np.int64(1)) if deep else more)
            for consumer in consumers:
                consumer.replace_source_output(total.output(0))
    model.add_parameters(inputs)
    model.validate_nodes_and_infer_types()
    return Layers(tuple(found), frozenset(fixed))


def _groups(model: Any) -> tuple[list[dict[str, Any]], set[str]]:
    """Returns the nodes of layers that take adapters, grouped by their input x, and the names of layers that do not."""
    groups: dict[tuple[str, int], dict[str, Any]] = {}
    fixed, seen = set[str](), set[str]()
    for node in model.get_ordered_ops():
        layer = _layer(node)
        if not layer or layer in seen:
            continue
        if not _by_token(node):
            fixed.add(layer)
            continue
        seen.add(layer)
        x = node.input_value(0)
        groups.setdefault((x.get_node().get_friendly_name(), x.get_index()), {})[layer] = node
    return list(groups.values()), fixed


def _width(value: Any) -> int:
    return int(value.get_partial_shape()[-1].get_length())


def _float(value: Any) -> Any:
    """Converts a value to float32; OpenVINO removes the conversion if it computes in the value's own type."""
    return value if value.get_element_type() == np.float32 else ops.convert(value, "f32")


def _layer(node: Any) -> str:
    """Returns the name in peft of the linear layer that a node computes, or "" if the node is not a linear layer."""
    name = node.get_friendly_name()
    if node.get_type_name() != "MatMul" or not name.startswith(MODULE) or "/" not in name:
        return ""
    return str(name.removeprefix(MODULE).partition("/")[0])


def _by_token(node: Any) -> bool:
    """Returns whether a node multiplies [tokens, width] or [tokens, 1, width] with a matrix.

    The last projection does not, since its input has only the tokens whose logits are needed.
    """
    x, weights, y = (value.get_partial_shape() for value in (*node.input_values(), node.output(0)))
    if any(shape.rank.is_dynamic or shape[-1].is_dynamic for shape in (x, weights, y)):
        return False
    if weights.rank.get_length() != 2 or not x[0].is_dynamic or "layers." not in node.get_friendly_name():
        return False
    rank = x.rank.get_length()
    return bool(rank == 2 or (rank == 3 and x[1].is_static and x[1].get_length() == 1))
