"""Quantizes a network's output head, the matrix that projects hidden states to logits, to 4 or 8 bits.

Embeddings stay as they are: if the file has one matrix for both, the head gets a quantized copy.
"""

from __future__ import annotations

import logging
from typing import Any, NamedTuple

import numpy as np
import openvino as ov
from numpy.typing import NDArray
from openvino import opset13 as ops

from ....config import EngineConfig
from ....engine.loading.weights import of_bf16
from ....engine.paged.ir_weights import last_projection
from ....engine.paged.network import WeightsSource
from ....errors import StartError
from ..feature import HeadOptions

log = logging.getLogger(__name__)

Floats = NDArray[np.float32]
GROUPS = (64, 32)
"""The numbers of elements that may share a scale, of which the first that divides a row is used.

With 32 a token takes OpenVINO (2026.4) a sixth longer than with 64.
"""
SHRUNK = {4: (1, 0.93, 0.87), 8: (1,)}
"""The fractions of a group's range that are tried, by bits. Clipping an outlier makes the others more exact."""
PIECE = 1 << 20
"""The most elements of the matrix that are quantized at once."""
ARITHMETIC = {"Multiply": np.multiply, "Subtract": np.subtract, "Add": np.add}
"""The operations with which files write weights of few bits."""


class SmallHead:
    """A source of networks that quantizes the output head of another source's network."""

    def __init__(self, config: EngineConfig, source: WeightsSource) -> None:
        """Keeps the source, and the number of bits from the options."""
        self._source = source
        self._bits = int(config.of(HeadOptions).head_precision.removeprefix("int"))

    @property
    def attention_cap(self) -> float:
        """Returns the soft cap of the attention logits of the network that is given a new head; 0 if there is none."""
        return self._source.attention_cap

    def read(self, core: Any) -> Any:
        """Reads the network and quantizes its head. Raises StartError for a head of an unknown form."""
        model = self._source.read(core)
        compress(model, self._bits)
        return model


def compress(model: Any, bits: int) -> None:
    """Quantizes a network's output head to `bits` bits, unless it has as few already. Raises StartError."""
    projection, _ = last_projection(model)
    weights = projection.input_value(1)
    shape = [size.get_length() for size in weights.get_partial_shape()]
    if len(shape) != 2 or not projection.get_attributes()["transpose_b"] or shape[1] % GROUPS[-1]:
        raise StartError(f"--head_precision: the output head multiplies by a matrix of an unsupported shape, {shape}")
    rows = _Rows(weights, shape[0])
    if rows.bits <= bits:
        log.info("the output head is not quantized: it already has %d bits", rows.bits)
        return
    projection.input(1).replace_source_output(_compressed(rows, shape, bits).output(0))
    model.validate_nodes_and_infer_types()
    log.info("the output head of %d tokens was quantized to int%d", shape[0], bits)


class _Rows:
    """The rows of a matrix that is computed from constants by simple operations."""

    def __init__(self, output: Any, count: int) -> None:
        """Keeps the matrix and the number of its rows. Raises StartError if other operations compute it."""
        self._output = output
        self._count = count
        self.bits = self._known(output)

    def __getitem__(self, part: slice) -> Floats:
        return np.asarray(self._floats(self._output, part), np.float32).reshape(part.stop - part.start, -1)

    def _known(self, output: Any) -> int:
        """Returns the number of bits of the matrix's first constant, which has its numbers."""
        node = output.get_node()
        kind = node.get_type_name()
        if kind == "Constant":
            return int(node.get_element_type().bitwidth)
        if kind not in (*ARITHMETIC, "Convert", "Reshape"):
            raise StartError(f"--head_precision: the output head is computed by {kind}, which is not supported")
        return self._known(node.input_value(0))

    def _floats(self, output: Any, part: slice) -> Any:
        """Returns rows of an operation in the matrix's graph as floats, or a constant that all rows share."""
        node = output.get_node()
        kind = node.get_type_name()
        if kind == "Constant":
            data = node.data[part] if node.data.ndim and len(node.data) == self._count else node.data
            if node.get_element_type() == ov.Type.bf16:
                return of_bf16(data.view(np.uint16))
            return data.astype(np.float32)
        values = [self._floats(value, part) for value in node.input_values()]
        if kind == "Reshape":
            return values[0].reshape(part.stop - part.start, -1)
        return ARITHMETIC[kind](*values) if kind in ARITHMETIC else values[0]


class _Numbers(NamedTuple):
    """A quantized part of a matrix [rows, groups, elements]; an element is (number - zero) * scale."""

    numbers: NDArray[np.uint8]
    """The integer of each element."""
    zeros: NDArray[np.uint8]
    """The zero point of each group."""
    scales: NDArray[np.float16]
    """The scale of each group."""


def _rounded(elements: Floats, bits: int) -> _Numbers:
    """Quantizes groups of elements [rows, groups, elements] to `bits` bits with the scales of the least error."""
    most = 2**bits - 1
    least = np.minimum(elements.min(-1, keepdims=True), 0)
    width = np.maximum(elements.max(-1, keepdims=True), 0) - least
    tried = [_numbered(elements, least + width * (1 - part) / 2, width * part / most, most) for part in SHRUNK[bits]]
    [best, wrong], *others = tried
    for found, error in others:
        arrays: zip[tuple[NDArray[Any], NDArray[Any]]] = zip(best, found, strict=True)
        for kept, new in arrays:
            np.copyto(kept, new, where=error < wrong)
        wrong = np.minimum(wrong, error)
    return best


def _numbered(elements: Floats, least: Floats, step: Floats, most: int) -> tuple[_Numbers, Floats]:
    """Quantizes groups of elements to integers from 0 to `most`, and returns the sum of squared errors of each group.

    Args:
        elements: The elements [rows, groups, elements].
        least: The value that the integer 0 of each group should represent.
        step: The difference of the values of consecutive integers.
        most: The greatest integer.
    """
    scales = step.astype(np.float16)
    scales[scales == 0] = 1
    steps = scales.astype(np.float32)
    zeros = np.clip(np.rint(-least / steps), 0, most)
    numbers = np.clip(np.rint(elements / steps) + zeros, 0, most)
    error = np.square((numbers - zeros) * steps - elements).sum(-1, keepdims=True)
    return _Numbers(numbers.astype(np.uint8), zeros.astype(np.uint8), scales), error


def _compressed(rows: _Rows, shape: list[int], bits: int) -> Any:
    """Quantizes a matrix, and returns an OpenVINO output with its values in f32.

    In memory they stay integers, since OpenVINO converts them while it computes a product.
    """
    count, columns = shape
    group, kind = next(size for size in GROUPS if columns % size == 0), ov.Type.u4 if bits == 4 else ov.Type.u8
    groups = columns // group
    numbers = ov.Tensor(kind, ov.Shape([count, groups, group]))
    scales = np.empty([count, groups, 1], np.float16)
    zeros = np.empty([count, groups, 1], np.uint8)
    target, step = _bytes(numbers).reshape(count, -1), max(1, PIECE // columns)
    for start in range(0, count, step):
        part = slice(start, min(count, start + step))
        found = _rounded(rows[part].reshape(-1, groups, group), bits)
        target[part] = _packed(found.numbers, bits).reshape(len(found.numbers), -1)
        zeros[part], scales[part] = found.zeros, found.scales
    offsets = ov.Tensor(kind, ov.Shape(zeros.shape))
    _bytes(offsets)[...] = _packed(zeros.reshape(-1), bits)
    node, zero = (ops.convert(ov.op.Constant(tensor, shared_memory=True), "f16") for tensor in (numbers, offsets))
    node = ops.multiply(ops.subtract(node, zero), scales)
    return ops.convert(ops.reshape(node, np.array(shape), False), "f32")


def _bytes(tensor: Any) -> NDArray[np.uint8]:
    """Returns the memory of a tensor as bytes; OpenVINO has no array for tensors with two numbers in a byte."""
    found: NDArray[np.uint8] = tensor.data.reshape(-1).view(np.uint8)
    return found


def _packed(numbers: NDArray[np.uint8], bits: int) -> NDArray[np.uint8]:
    """Packs numbers into bytes: 8-bit numbers unchanged, 4-bit numbers in pairs, the first one in the lower half."""
    if bits == 8:
        return numbers.reshape(-1)
    flat = np.append(numbers.reshape(-1), np.zeros(numbers.size % 2, np.uint8))
    packed: NDArray[np.uint8] = flat[::2] | flat[1::2] << np.uint8(4)
    return packed
