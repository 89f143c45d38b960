"""Inputs of a network by their names."""

from __future__ import annotations

from typing import Any

from openvino import PartialShape
from openvino import opset13 as ops


def network_input(name: str, shape: list[int], kind: Any) -> Any:
    """Returns a new input, which `add_parameters` adds to a network."""
    node = ops.parameter(PartialShape(shape), kind, name=name)
    node.output(0).get_tensor().set_names({name})
    return node


def find_input(model: Any, name: str) -> Any:
    """Returns an input of a network, None if there is none of this name."""
    return next((each for each in model.get_parameters() if name in each.output(0).get_names()), None)
