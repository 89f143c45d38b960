"""The tensors of a GGUF file as constants of a network: matrices stay in 4 or 8 bits, as in OpenVINO's own models.

What is read of the mapped file is written into OpenVINO's memory once, in pieces, with the bits in OpenVINO's order.
"""

from __future__ import annotations

import mmap
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
from numpy.typing import NDArray
from openvino import opset13 as ops

from ....repository import gguf_names
from ....util.files import open_regular
from ..header import Header
from .blocks import BLOCKS, BlockType, Floats

Order = NDArray[np.int64]
F32, BF16 = 0, 30
PLAIN = {F32: ov.Type.f32, 1: ov.Type.f16, BF16: ov.Type.bf16}
"""The types of tensors that have no blocks, by their numbers in the file."""
PIECE = 1 << 20
"""Elements that are read at once: what is computed of them stays in the processor's cache."""


class Tensors:
    """The tensors of a file, or of all parts of a split one, mapped while they are read."""

    def __init__(self, path: Path, header: Header) -> None:
        """Maps the files. Raises OSError."""
        self._header = header
        self._maps: list[mmap.mmap] = []
        for file in gguf_names.parts(path):
            with open_regular(file) as opened:
                self._maps.append(mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ))

    def __enter__(self) -> Tensors:
        return self

    def __exit__(self, *_: object) -> None:
        for one in self._maps:
            one.close()

    def __contains__(self, name: str) -> bool:
        return name in self._header.tensors

    def shape(self, name: str) -> list[int]:
        """Returns the dimensions of a tensor, rows first."""
        return self._header.tensors[name][::-1]

    def numbers(self, name: str) -> NDArray[np.float32]:
        """Returns a small tensor as floats."""
        shape, kind, data = self.shape(name), self._header.kinds[name], self._bytes(name)
        if kind in BLOCKS:
            numbers, scale, offset = BLOCKS[kind].read(data.reshape(-1, BLOCKS[kind].size))
            found = numbers * scale[..., None] + (0 if offset is None else offset[..., None])
        elif kind == BF16:
            found = (data.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
        else:
            found = data.view(PLAIN[kind].to_dtype()).astype(np.float32)
        return found.reshape(shape)

    def matrix(self, name: str, rows: slice = slice(None), order: Order | None = None) -> Any:
        """Returns a tensor [rows, columns] as an output of 32-bit floats.

        Args:
            name: The tensor.
            rows: The rows that are taken.
            order: The order in which these are taken; None: their own.
        """
        kind, shape = self._header.kinds[name], self.shape(name)
        data = self._bytes(name).reshape(shape[0], -1)[rows]
        data = data if order is None else data[order]
        if kind in BLOCKS:
            node = _compressed(data, BLOCKS[kind])
        else:
            found = ov.Tensor(PLAIN[kind], ov.Shape([len(data), shape[1]]))
            found.data.view(np.uint8)[...] = data
            constant = ov.op.Constant(found, shared_memory=True)
            node = constant if kind == F32 else ops.convert(constant, "f32")
        node.set_friendly_name(name)
        return node.output(0)

    def _bytes(self, name: str) -> NDArray[np.uint8]:
        """Returns the bytes of a tensor; the pages of what was read before leave the process's memory."""
        part, offset = self._header.places[name]
        self._maps[part].madvise(mmap.MADV_DONTNEED)
        return np.frombuffer(self._maps[part], np.uint8, self._header.size(name), offset)


def _compressed(data: NDArray[np.uint8], kind: BlockType) -> Any:
    """Returns rows of blocks as an operation that makes 32-bit floats, which OpenVINO does within its products.

    Offsets become zeros that are no whole numbers: (number - zero) * scale.
    """
    rows, columns = len(data), data.shape[1] // kind.size * kind.elements
    middle = 8 if kind.bits == 4 and kind.offsets else 0
    whole = ov.Type.i8 if kind.bits == 8 else ov.Type.u4 if middle else ov.Type.i4
    numbers = ov.Tensor(whole, ov.Shape([rows, columns // kind.group, kind.group]))
    target = numbers.data.view(np.uint8).reshape(rows, -1)
    scales = np.empty((rows, columns // kind.group, 1), np.float16 if kind.exact and not kind.offsets else np.float32)
    zeros = np.empty(scales.shape, np.float32) if kind.offsets else None
    step = max(1, PIECE // columns)
    for start in range(0, rows, step):
        piece = slice(start, start + step)
        found, scale, offset = kind.read(data[piece].reshape(-1, kind.size))
        if zeros is not None and offset is not None:
            scale, zero = _zeros(found, scale, offset)
            zeros[piece] = (zero + middle).reshape(zeros[piece].shape)
        scales[piece] = scale.reshape(scales[piece].shape)
        bits: NDArray[Any] = found.view(np.uint8)
        if kind.bits == 4:
            bits = (bits + middle) & 15
            bits = bits[..., ::2] | bits[..., 1::2] << 4
        target[piece] = bits.reshape(target[piece].shape)
    node = ops.convert(ov.op.Constant(numbers, shared_memory=True), scales.dtype)
    if zeros is not None:
        node = ops.subtract(node, ov.op.Constant(zeros))
    node = ops.reshape(ops.multiply(node, ov.op.Constant(scales)), np.array([rows, columns]), False)
    return node if scales.dtype == np.float32 else ops.convert(node, "f32")


def _zeros(numbers: NDArray[np.int8], scale: Floats, offset: Floats) -> tuple[Floats, Floats]:
    """Returns the scales and the zeros of groups. One without a scale becomes (0 - -1) * its offset."""
    flat = scale == 0
    numbers[flat], scale = 0, np.where(flat, offset, scale)
    with np.errstate(divide="ignore", invalid="ignore"):
        return scale, np.where(flat, np.float32(-1), -offset / scale)
