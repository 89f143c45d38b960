"""The tensors of a GGUF file as constants of a network: matrices stay in 4 or 8 bits, as in OpenVINO's own models.

What is read of the mapped file is written into OpenVINO's memory once, in pieces, with the bits in OpenVINO's order.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import openvino as ov
from numpy.typing import NDArray
from openvino import opset13 as ops

from ....repository import model_file
from ....util.files import open_regular
from ..header import BLOCK_SIZES, Header
from .blocks import BLOCKS

Order = NDArray[np.int64]
F32, BF16 = 0, 30
PLAIN = {F32: ov.Type.f32, 1: ov.Type.f16, BF16: ov.Type.bf16}
"""The types of tensors that have no blocks, by their numbers in the file."""
PIECE = 1 << 18
"""Elements that are read at once: what is computed of them stays in the processor's cache."""


class TensorRows(NamedTuple):
    """Says which rows of a tensor are taken."""

    tensor: str
    """The name of the tensor."""
    rows: slice = slice(None)
    """Which of its rows."""
    order: Order | None = None
    """The order in which these are taken; None: their own."""


class Matrix(NamedTuple):
    """A matrix [rows, columns]: weights, and for some types of blocks an offset for each group of a row's elements.

    With offsets in the weights, as zeros that are no whole numbers, OpenVINO (2026.4) takes twice as long for a token.
    """

    weights: Any
    """The weights as an output of 32-bit floats, which OpenVINO keeps in 4 or 8 bits."""
    offsets: Any = None
    """The offsets [rows, groups]; None: there are none."""


class Tensors:
    """The tensors of a file, or of all parts of a split one, mapped while they are read."""

    def __init__(self, path: Path, header: Header) -> None:
        """Maps the files. Raises OSError."""
        self._header = header
        self._maps: list[mmap.mmap] = []
        for file in model_file.parts(path):
            with open_regular(file) as opened:
                self._maps.append(mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ))

    def __enter__(self) -> Tensors:
        return self

    def __exit__(self, *_: object) -> None:
        self._maps.clear()  # closing one would raise an error while the frames of another error refer to its bytes

    def __contains__(self, name: str) -> bool:
        return name in self._header.tensors

    def shape(self, name: str) -> list[int]:
        """Returns the dimensions of a tensor, rows first."""
        return self._header.tensors[name][::-1]

    def numbers(self, name: str) -> NDArray[np.float32]:
        """Returns a small tensor as floats."""
        shape, kind, data = self.shape(name), self._header.kinds[name], self._bytes(name)
        if kind in BLOCKS:
            numbers, scale, offset = BLOCKS[kind].read(data.reshape(-1, BLOCK_SIZES[kind][1]))
            found = numbers * scale[..., None] + (0 if offset is None else offset[..., None])
        elif kind == BF16:
            found = (data.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
        else:
            found = data.view(PLAIN[kind].to_dtype()).astype(np.float32)
        return found.reshape(shape)

    def kind(self, name: str) -> int:
        """Returns the number of a tensor's type."""
        return self._header.kinds[name]

    def count(self, part: TensorRows) -> int:
        """Returns the number of rows."""
        return len(range(*part.rows.indices(self.shape(part.tensor)[0])))

    def matrix(self, *parts: TensorRows) -> Matrix:
        """Returns rows of tensors of one type and width, one after the other, as a matrix."""
        kind, rows, columns = self.kind(parts[0].tensor), sum(map(self.count, parts)), self.shape(parts[0].tensor)[1]
        pieces, offsets = self._pieces(parts), None
        if kind in BLOCKS:
            node, offsets = _compressed(pieces, rows, columns, kind)
        else:
            constant, target = _constant(PLAIN[kind], [rows, columns])
            for piece, data in pieces:
                target.view(np.uint8)[piece] = data
            node = constant if kind == F32 else ops.convert(constant, "f32")
        node.set_friendly_name(parts[0].tensor)
        return Matrix(node.output(0), offsets)

    def _pieces(self, parts: Sequence[TensorRows]) -> Iterator[tuple[slice, NDArray[np.uint8]]]:
        """Yields pieces of rows as they are in the file, and where they belong in the matrix of all parts."""
        start = 0
        for part in parts:
            data = self._bytes(part.tensor).reshape(self.shape(part.tensor)[0], -1)[part.rows]
            order = np.arange(len(data)) if part.order is None else part.order
            step = max(1, PIECE // self.shape(part.tensor)[1])
            for first in range(0, len(data), step):
                found = data[order[first : first + step]]
                yield slice(start + first, start + first + len(found)), found
            start += len(data)

    def _bytes(self, name: str) -> NDArray[np.uint8]:
        """Returns the bytes of a tensor; the pages of what was read before leave the process's memory."""
        part, offset = self._header.places[name]
        self._maps[part].madvise(mmap.MADV_DONTNEED)
        return np.frombuffer(self._maps[part], np.uint8, self._header.size(name), offset)


def _compressed(
    pieces: Iterable[tuple[slice, NDArray[np.uint8]]], rows: int, columns: int, kind: int
) -> tuple[Any, Any]:
    """Returns a matrix of blocks as 32-bit floats, which OpenVINO makes within its products, and its offsets, if any.

    Args:
        pieces: Rows as they are in the file, and where they belong.
        rows: The number of rows.
        columns: The elements of a row.
        kind: The number of the type of the blocks.
    """
    blocks, (_, size) = BLOCKS[kind], BLOCK_SIZES[kind]
    groups = [rows, columns // blocks.group]
    numbers, bits = _constant(ov.Type.i8 if blocks.bits == 8 else ov.Type.i4, [*groups, blocks.group])
    scales, factors = _constant(ov.Type.f16 if blocks.exact else ov.Type.f32, [*groups, 1])
    offsets, lifts = _constant(ov.Type.f32, groups) if blocks.offsets else (None, factors)
    for piece, data in pieces:
        found, scale, offset = blocks.read(data.reshape(-1, size))
        factors[piece] = scale.reshape(-1, groups[1])
        if offset is not None:
            lifts[piece] = offset.reshape(-1, groups[1])
        each: NDArray[Any] = found.view(np.uint8)
        if blocks.bits == 4:
            each = each[..., ::2] & 15 | each[..., 1::2] << 4
        bits.view(np.uint8)[piece] = each.reshape(len(data), -1)
    node = ops.convert(numbers, "f16" if blocks.exact else "f32")
    node = ops.reshape(ops.multiply(node, scales), np.array([rows, columns]), False)
    return ops.convert(node, "f32") if blocks.exact else node, offsets


def _constant(kind: ov.Type, shape: list[int]) -> tuple[Any, NDArray[Any]]:
    """Returns a constant, and its memory to be written [rows, all else]."""
    tensor = ov.Tensor(kind, ov.Shape(shape))
    return ov.op.Constant(tensor, shared_memory=True), tensor.data.reshape(shape[0], -1)
