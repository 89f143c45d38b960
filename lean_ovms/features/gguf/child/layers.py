"""The operations of a decoder, in the patterns of optimum-intel's exports, which OpenVINO recognizes and optimizes.

A norm and RoPE are one operation each. OpenVINO computes angles in 32 bits whatever the precision of the rest, and
keeps matrices in 4 or 8 bits. Values are [tokens, 1, width], or [tokens, heads, 1, size of a head].
"""

from __future__ import annotations

import math
import platform
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from openvino import Output
from openvino import opset13 as ops
from openvino.utils.node_factory import NodeFactory

from ....engine.loading.settings import cpu_plugin
from .tensors import Matrix

Floats = NDArray[np.float32]
Cosine = tuple[Any, Any]
"""The cosines and sines of the tokens' positions [tokens, 1, 1, rotated size]."""
END = np.iinfo(np.int64).max
FUSES_NORMS = platform.machine().lower() in ("x86_64", "amd64")
"""Whether OpenVINO's plugin for this CPU has RMS norms as one operation, which it divides itself if it cannot."""


def norm(x: Any, weight: Floats, epsilon: float) -> Any:
    """Applies the RMS norm along the last axis, multiplied by a weight.

    It is the operation that OpenVINO's passes would find if possible: without it a network has a fifth to a third more
    nodes, and takes that much longer to build and compile.
    """
    one = [1] * _rank(x)
    weight = weight.reshape([*one[:-1], -1])
    if FUSES_NORMS:
        return _compiled_operation("RMS", [x, ops.constant(weight)], {"epsilon": epsilon})
    squares = ops.power(x, np.full(one, 2, np.float32))
    mean = ops.add(ops.reduce_mean(squares, np.array([-1]), True), np.full(one, epsilon, np.float32))
    scaled = ops.multiply(x, ops.divide(np.full(one, 1, np.float32), ops.sqrt(mean)))
    return ops.multiply(weight, scaled)


def unit(x: Any) -> Any:
    """Divides x by its length along the last axis."""
    squares = ops.reduce_sum(ops.multiply(x, x), np.array([-1]), True)
    return ops.divide(x, ops.sqrt(ops.add(squares, np.float32(1e-6))))


def partial_shape(x: Any) -> Any:
    """Returns the shape of a node's first output, or of an output."""
    return x.get_partial_shape() if isinstance(x, Output) else x.get_output_partial_shape(0)


def _rank(x: Any) -> int:
    return int(partial_shape(x).rank.get_length())


def sparse(x: Any, deviations: float) -> Any:
    """Subtracts a limit from the elements along the last axis, and sets those below it to 0.

    Args:
        x: The values.
        deviations: The distance of the limit from the mean of the values, in their standard deviations.
    """
    centred = ops.subtract(x, ops.reduce_mean(x, np.array([-1]), True))
    deviation = ops.sqrt(ops.reduce_mean(ops.multiply(centred, centred), np.array([-1]), True))
    return ops.relu(ops.subtract(centred, times(deviation, deviations)))


def angles(positions: Any, frequencies: Floats, factor: float) -> Cosine:
    """Returns the cosines and sines of RoPE for positions.

    Args:
        positions: The positions [tokens], or [axes, tokens].
        frequencies: The frequency of each pair of elements [pairs], or for each axis [pairs, axes].
        factor: A factor of all cosines and sines.
    """
    axes = frequencies.shape[1] if frequencies.ndim > 1 else 0
    places = ops.unsqueeze(ops.transpose(positions, np.array([1, 0])) if axes else positions, np.int64(-1))
    places = places if axes else ops.unsqueeze(places, np.int64(1))
    products = ops.matmul(frequencies.reshape(1, -1, axes or 1), ops.convert(places, "f32"), False, False)
    half = ops.transpose(products, np.array([0, 2, 1], np.int32))
    whole = ops.concat([half, half], -1)
    cosines, sines = (times(found, factor) for found in (ops.cos(whole), ops.sin(whole)))
    return ops.unsqueeze(cosines, np.int64(1)), ops.unsqueeze(sines, np.int64(1))


def temperature(positions: Any, scale: float, period: int) -> Any:
    """Returns a factor of queries [tokens, 1, 1, 1] that grows with the logarithm of their positions.

    Args:
        positions: The positions [tokens].
        scale: The speed of the growth.
        period: The number of consecutive positions that share a factor.
    """
    periods = ops.convert(ops.divide(positions, np.int64(period)), "f32")
    found = ops.add(times(ops.log(ops.add(periods, np.float32(1))), scale), np.float32(1))
    return ops.unsqueeze(found, np.array([1, 2, 3]))


def times(x: Any, factor: float) -> Any:
    """Multiplies x by a number."""
    return x if factor == 1 else ops.multiply(x, np.float32(factor))


def rotate(x: Any, turned: Cosine, size: int, rotated: int) -> Any:
    """Applies RoPE (rotary position embedding) to the vectors of heads.

    Args:
        x: The vectors [tokens, heads, 1, size].
        turned: The cosines and the sines of the angles.
        size: The number of elements in the vector of a head.
        rotated: The number of elements at its beginning that are rotated; the others stay as they are.
    """
    if rotated == size:  # the operation that OpenVINO's passes would find, which takes them a sixth of their time
        return _compiled_operation("RoPE", [x, *turned], {"config.rotary_ndims": rotated})
    head, half = part(x, 0, rotated), rotated // 2
    swapped = ops.concat([ops.multiply(part(head, half, END), np.float32(-1)), part(head, 0, half)], -1)
    found = ops.add(ops.multiply(head, turned[0]), ops.multiply(swapped, turned[1]))
    return ops.concat([found, part(x, rotated, END)], -1)


def _compiled_operation(kind: str, values: list[Any], attributes: dict[str, Any]) -> Any:
    """Returns an operation that OpenVINO otherwise creates only while it compiles a network.

    Args:
        kind: The type of the operation.
        values: Its inputs.
        attributes: Its attributes.
    """
    inputs = [value if isinstance(value, Output) else value.output(0) for value in values]
    return _compiled_operations().create(kind, inputs, attributes)


@cache
def _compiled_operations() -> NodeFactory:
    """Returns the factory of these operations."""
    found = NodeFactory()
    found.add_extension(cpu_plugin())
    return found


def part(x: Any, start: int, end: int) -> Any:
    """Slices the last axis from `start` to `end`."""
    axis = _rank(x) - 1
    return ops.slice(x, *(np.array([value], np.int64) for value in (start, end, 1, axis)))


def looked_up(matrix: Matrix, ids: Any) -> Any:
    """Looks up the rows of a matrix by ids [tokens, 1]."""
    rows = ops.gather(matrix.weights, ids, np.int32(0))
    return rows if matrix.offsets is None else _raised(rows, ops.gather(matrix.offsets, ids, np.int32(0)))


def whole(matrix: Matrix) -> Any:
    """Returns a matrix as one output, with its offsets added."""
    return matrix.weights if matrix.offsets is None else _raised(matrix.weights, matrix.offsets).output(0)


def _raised(rows: Any, offsets: Any) -> Any:
    """Adds the offsets of groups [..., groups] to rows [..., columns]."""
    shape = partial_shape(rows)
    groups, columns = offsets.get_output_partial_shape(0)[-1].get_length(), shape[-1].get_length()
    kept = [0] * (shape.rank.get_length() - 1)
    divided = ops.reshape(rows, np.array([*kept, groups, columns // groups]), True)
    return ops.reshape(ops.add(divided, ops.unsqueeze(offsets, np.int64(-1))), np.array([*kept, columns]), True)


class Sums:
    """Sums of groups of elements, which are computed once for all matrices by which one x is multiplied."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, int], Any] = {}

    def of(self, x: Any, groups: int) -> Any:
        """Returns the sums [..., groups] of the groups of x's elements [..., columns]."""
        key = x.get_friendly_name(), groups
        if key not in self._known:
            width = x.get_output_partial_shape(0)[-1].get_length()
            shape = np.array([0] * (_rank(x) - 1) + [groups, width // groups])
            self._known[key] = ops.reduce_sum(ops.reshape(x, shape, True), np.array([-1]), False)
        return self._known[key]


def product(x: Any, matrix: Matrix, sums: Sums, bias: Floats | None, name: str) -> Any:
    """Returns the product of x and a matrix [..., rows].

    Args:
        x: The input [..., columns].
        matrix: The matrix [rows, columns].
        sums: The sums of groups of inputs, by which the matrix's offsets are multiplied.
        bias: The bias [rows]; None if there is none.
        name: The name of the layer in transformers, by which LoRA adapters find it; "" if they cannot change it.
    """
    found = ops.matmul(x, matrix.weights, False, True)
    if name:
        found.set_friendly_name(f"__module.{name}/aten::linear/MatMul")
    if matrix.offsets is not None:
        groups = matrix.offsets.get_output_partial_shape(0)[1].get_length()
        found = ops.add(found, ops.matmul(sums.of(x, groups), matrix.offsets, False, True))
    return found if bias is None else ops.add(found, bias.reshape([1] * (_rank(x) - 1) + [-1]))


def limited(gate: Any, shown: Any, limit: float) -> tuple[Any, Any]:
    """Returns activated gates and the values that they multiply, limited to a largest number; 0 for no limit."""
    return (ops.minimum(gate, np.float32(limit)), ops.clamp(shown, -limit, limit)) if limit else (gate, shown)


def _squared_relu(x: Any) -> Any:
    shown = ops.relu(x)
    return ops.multiply(shown, shown)


def xielu(x: Any, positive: float, negative: float, beta: float, epsilon: float) -> Any:
    """Returns xIELU, a square for positive values and an exponential function for others (arXiv:2411.13010).

    Args:
        x: The values.
        positive: The trained number of the square, before softplus.
        negative: The trained number of the exponential function, before softplus.
        beta: The slope at 0.
        epsilon: The largest value of which the exponential function is computed.
    """
    square, exponential = math.log1p(math.exp(positive)), beta + math.log1p(math.exp(negative))
    below = ops.subtract(ops.subtract(ops.exp(ops.minimum(x, np.float32(epsilon))), np.float32(1)), x)
    found = ops.select(ops.greater(x, np.float32(0)), times(ops.multiply(x, x), square), times(below, exponential))
    return ops.add(found, times(x, beta))


ACTIVATIONS: dict[str, Callable[[Any], Any]] = {
    "silu": ops.swish,
    "gelu": lambda x: ops.gelu(x, "tanh"),
    "exact_gelu": lambda x: ops.gelu(x, "erf"),
    "relu": ops.relu,
    "squared_relu": _squared_relu,
}
"""The activation functions of feed-forward networks, by name."""
