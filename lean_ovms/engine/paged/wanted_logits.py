"""The end of a model's network: logits of the tokens that are wanted, not of all.

The exported network has logits for every token; a prompt of 4,000 needs one row of them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from openvino import opset13 as ops

from .network import LOGITS_INPUT, NotPageable

ELEMENTWISE = ("Add", "Multiply", "Divide", "Tanh", "Convert")
"""What models do to each logit by itself behind the last projection: bias, scale, soft cap."""


def limit(model: Any) -> None:
    """Makes a network compute logits for wanted tokens alone. Raises NotPageable."""
    projection, axis = last_projection(model)
    gather(model, projection.input_value(0), [projection.input(0)], axis)


def last_projection(model: Any) -> tuple[Any, int]:
    """Returns the MatMul that makes the logits, and the axis of tokens in its input. Raises NotPageable."""
    node, axis = model.outputs[0].get_node().input_value(0).get_node(), 0
    while node.get_type_name() != "MatMul":
        kind = node.get_type_name()
        if kind == "Transpose":
            axis = int(node.input_value(1).get_node().data[axis])
        elif kind not in ELEMENTWISE:
            raise NotPageable(f"the logits come out of {kind}: the network has no last projection that is known")
        constant = node.input_value(0).get_node().get_type_name() == "Constant"
        node = node.input_value(1 if constant else 0).get_node()
    return node, axis


def gather(model: Any, hidden: Any, readers: list[Any], axis: int) -> Any:
    """Gives readers the hidden states of the tokens whose places in the batch are in the input LOGITS_INPUT.

    Args:
        model: The network, which gets the input.
        hidden: The hidden states of all tokens.
        readers: The inputs of operations that read them.
        axis: The axis of tokens in the hidden states.

    Returns:
        The output that the readers have now.
    """
    wanted = ops.parameter([-1], np.int64, LOGITS_INPUT)
    wanted.output(0).get_tensor().set_names({LOGITS_INPUT})
    gathered = ops.gather(hidden, wanted, np.array([axis], np.int64)).output(0)
    for reader in readers:
        reader.replace_source_output(gathered)
    model.add_parameters([wanted])
    model.validate_nodes_and_infer_types()
    return gathered
