"""Computes the short convolution before a gated delta rule with plain operations, for a chunk of a prompt.

OpenVINO's operation PagedCausalConv1D takes ten times as long for a prompt as a grouped convolution.
"""

from __future__ import annotations

from ....engine.loading import quiet_imports  # noqa: F401 - first, for its effect

# isort: split
from collections.abc import Sequence
from typing import Any

import numpy as np
import openvino as ov
from openvino import opset13 as ops

CONVOLUTION, ACTIVATION = "PagedCausalConv1D", "Swish"
ROWS, ROW_TABLE, WEIGHTS, BIAS, ROW_BEGINS = range(5)
"""Inputs of the operation, of which ROW_BEGINS says where the tokens of each sequence begin."""


def activate_rows(convolution: Any) -> None:
    """Moves the activation function after a short convolution, so that it is applied to rows [tokens, channels].

    Exports have it after an Unsqueeze to [tokens, channels, 1], where OpenVINO takes ten times as long.
    """
    found = [convolution]
    for kind in ("Unsqueeze", ACTIVATION):
        readers = [reader.get_node() for reader in found[-1].output(0).get_target_inputs()]
        if [reader.get_type_name() for reader in readers] != [kind]:
            return
        found += readers
    _, unsqueezed, activated = found
    readers = list(activated.output(0).get_target_inputs())
    activated.input(0).replace_source_output(convolution.output(0))
    unsqueezed.input(0).replace_source_output(activated.output(0))
    for reader in readers:
        reader.replace_source_output(unsqueezed.output(0))


def convolution_before(node: Any, values: Sequence[Any]) -> Any:
    """Returns the convolution from which an operation's queries, keys and values among its inputs are computed.

    It returns None if there is no single one, or if its results (not only their shapes) are used elsewhere as well.
    """
    seen = {node.get_friendly_name(): node}
    left = [value.get_node() for value in values]
    while left:
        each = left.pop()
        if seen.setdefault(each.get_friendly_name(), each) is each and each.get_type_name() != CONVOLUTION:
            left += [port.get_source_output().get_node() for port in each.inputs()]
    found = [each for each in seen.values() if each.get_type_name() == CONVOLUTION]
    if len(found) != 1:
        return None
    tokens = found[0].input_value(ROWS)
    left, reached = [*found], set[str]()
    while left:
        each = left.pop()
        for reader in (reader for port in each.outputs() for reader in port.get_target_inputs()):
            user = reader.get_node()
            name = user.get_friendly_name()
            if name not in seen:
                if "ShapeOf" not in (user.get_type_name(), each.get_type_name()):
                    return None
                _read_shape(each, user, tokens)
            elif name not in reached and user is not node:
                reached.add(name)
                left.append(user)
    return found[0]


def _read_shape(node: Any, user: Any, tokens: Any) -> None:
    """Makes a user of a value's shape read the shape of all tokens' values instead.

    Args:
        node: The operation that computes the value, or the shape.
        user: The operation that computes the shape, or uses it.
        tokens: The values of all tokens, [tokens, ...].
    """
    shape = node if node.get_type_name() == "ShapeOf" else user
    count = ops.gather(ops.shape_of(tokens), _int64([0]), _int64(0))
    sizes = shape.input_value(0).get_partial_shape()
    whole = ops.concat([count if size.is_dynamic else _int64([size.get_length()]) for size in sizes], 0)
    whole = ops.convert(whole, shape.get_output_element_type(0).to_string())
    for reader in list(shape.output(0).get_target_inputs()):
        if shape is user or reader.get_node().get_friendly_name() == user.get_friendly_name():
            reader.replace_source_output(whole.output(0))


class ShortConvolution:
    """A short convolution with the operations that depend only on its results."""

    def __init__(self, convolution: Any, values: Sequence[Any]) -> None:
        """Copies the operations that compute the values [tokens, ...] from a convolution.

        Raises RuntimeError if the values depend on other inputs as well.
        """
        shape = convolution.input_value(ROW_TABLE).get_partial_shape()
        self.channels, self.length = (shape[axis].get_length() for axis in (1, 2))
        rows = ops.parameter([-1, self.channels], np.float32)
        readers = list(convolution.output(0).get_target_inputs())
        for reader in readers:
            reader.replace_source_output(rows.output(0))
        try:
            constants = [convolution.input_value(port) for port in (WEIGHTS, BIAS)]
            self._model = ov.Model([*values, *constants], [rows]).clone()
        finally:
            for reader in readers:
                reader.replace_source_output(convolution.output(0))

    def computed(self, rows: Any, state: Any, length: Any) -> tuple[list[Any], Any]:
        """Returns the values of a chunk's tokens, each [1, tokens, ...], and the state after them.

        It may be called once.

        Args:
            rows: The inputs of the tokens, [1, tokens, channels].
            state: The inputs of the tokens before, [1, channels, length].
            length: The number of tokens that are not padding, [1].
        """
        before = ops.transpose(state, _int64([0, 2, 1]))
        before = ops.slice(before, _int64([1]), _int64([self.length]), _int64([1]), _int64([1]))
        known = ops.concat([before, rows], 1)
        *values, weights, bias = (result.input_value(0) for result in self._model.get_results())
        weights = ops.reshape(weights, _int64([self.channels, 1, 1, self.length]), False)
        by_channel = ops.transpose(known, _int64([0, 2, 1]))
        sums = ops.transpose(ops.group_convolution(by_channel, weights, [1], [0], [0], [1]), _int64([0, 2, 1]))
        if bias.get_shape()[0]:
            sums = ops.add(sums, bias)
        [parameter] = self._model.get_parameters()
        for reader in list(parameter.output(0).get_target_inputs()):
            reader.replace_source_output(ops.squeeze(sums, _int64([0])).output(0))
        places = ops.add(ops.constant(np.arange(-1, self.length - 1, dtype=np.int32)), length)
        after = ops.transpose(ops.gather(known, places, _int64(1)), _int64([0, 2, 1]))
        return [ops.unsqueeze(value, _int64([0])) for value in values], after


def _int64(values: Any) -> Any:
    return ops.constant(np.array(values, np.int64))
