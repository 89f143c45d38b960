"""Turns the tensors of a GGUF file into constants of a network; matrices stay in 4 or 8 bits, as in OpenVINO's models.

The file is mapped, and converted to OpenVINO's bit order piece by piece, so that it is never twice in memory.
"""

from __future__ import annotations

import errno
import logging
import math
import mmap
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import openvino as ov
from numpy.typing import NDArray
from openvino import opset13 as ops

from ....engine.loading.weight_pages import file_state
from ....engine.loading.weights import of_bf16
from ....errors import StartError, last_line
from ....repository import model_file
from ....util.files import open_regular
from ....util.sizes import human_size
from ..header import BLOCK_SIZES, EXPORT, MMPROJ, PULL_AGAIN, Header
from .blocks import BLOCKS, GROUP, Floats, in_eight_bits, in_pairs, row_error
from .constant_file import ConstantFile, NewConstant

log = logging.getLogger("lean_ovms.gguf")

Order = NDArray[np.int64]
F32, BF16 = 0, 30
PLAIN = {F32: ov.Type.f32, 1: ov.Type.f16, BF16: ov.Type.bf16}
"""The types of tensors that have no blocks, by their numbers in the file."""
PIECE = 1 << 18
"""The number of elements that are read at once: what is computed of them stays in the processor's cache. Pieces of half
this size need twice as many calls, and reading Qwen2.5-Coder 1.5B then takes 1.25 times as much CPU time."""
ROUNDED = range(1 << 18, (1 << 21) + 1)
"""The elements of a matrix of 4 bits with offsets that is rounded to 8 bits: there is no second product then, and a
token of SmolLM2-135M takes 0.86 of the time. Larger ones take more time and memory: with twice the limit a token of
Qwen3-0.6B (Q4_K_M) takes 1.08 of the time, a step of eight 1.05 and a prompt of 512 tokens 0.97. Matrices of 8
bits are rounded from the same size on, where that saves time: groups of 16 are slow (with them, the last product of
Qwen3-0.6B takes 4.9 ms in place of 2.8), and one scale for a row takes 0.7 to 0.9 of the time with groups of 32."""
SAMPLED = 64
"""The rows of a tensor by which the error of one scale for a row is found, so that reading takes no longer."""
ROW_ERROR = 0.5
"""The most error that one scale for each row may make, in parts of the error that the type of the file has made."""
PROGRESS_S = 5.0
"""Seconds between two lines of the log about a file that is being read."""


class TensorRows(NamedTuple):
    """A selection of rows of a tensor."""

    tensor: str
    """The name of the tensor."""
    rows: slice = slice(None)
    """The selected rows."""
    order: Order | None = None
    """The order of the selected rows; None for the order of the tensor."""


@contextmanager
def opened(path: Path, header: Header, *, exact: bool = False) -> Iterator[Tensors]:
    """Opens the tensors of a file while a network is built from them.

    Args:
        path: The path of the GGUF file.
        header: The header of the file.
        exact: Whether matrices must keep their values, instead of being requantized where that is faster.

    Raises:
        StartError: The caller's block raised an error, since the file is not whole or has parts that do not fit.
    """
    try:
        with Tensors(path, header, exact=exact) as tensors:
            yield tensors
            tensors.require_unchanged()
        if header.architecture != MMPROJ:  # each network of an mmproj file uses only a part of its values
            warn_of_unused(path, header)
    except KeyError as error:
        raise StartError(f"{path} is not a complete GGUF file: it has no {error.args[0]}; {PULL_AGAIN}") from error
    except (RuntimeError, ValueError, TypeError, IndexError, ArithmeticError, OSError) as error:
        if isinstance(error, OSError) and error.errno == errno.ENOMEM:  # no fault of the file
            raise MemoryError(error.strerror) from error
        # raised if sizes do not fit together, or a value is of another kind
        raise StartError(f"{path} cannot be served: {last_line(error)}; {EXPORT}") from error


def warn_of_unused(path: Path, header: Header) -> None:
    """Logs the values of a file that none of its networks has used.

    Args:
        path: The path of the file.
        header: The header of the file.
    """
    if unused := header.unused:
        log.warning("%s: answers may be wrong, since these values are not used: %s", path.name, ", ".join(unused))


class Matrix(NamedTuple):
    """A matrix [rows, columns]: weights, and for some quantization types an offset for each group of a row's elements.

    Offsets are apart from the weights because OpenVINO (2026.4) takes twice as long for a token if they are fractional
    zero points of the weights.
    """

    weights: Any
    """The weights as an output of 32-bit floats, which OpenVINO keeps in 4 or 8 bits."""
    offsets: Any = None
    """The offsets [rows, groups]; None if there are none."""


class Tensors:
    """The tensors of a file, or of all parts of a split one, which are mapped while they are read."""

    def __init__(self, path: Path, header: Header, *, exact: bool = False) -> None:
        """Maps the files.

        Args:
            path: The path of the file; of a split file, that of its first part.
            header: The header of the file.
            exact: Whether matrices must keep their values, instead of being requantized where that is faster.

        Raises:
            OSError: A file cannot be read.
        """
        self.header = header
        self._exact = exact
        self._name = path.name
        self._read: set[str] = set()
        self._began = self._told = time.monotonic()
        self._maps: list[mmap.mmap] = []
        self._constants = ConstantFile(sum(map(self._constant_bytes, header.tensors)))
        self._files: list[BinaryIO] = []
        for file in model_file.parts(path):
            self._files.append(open_regular(file))
            self._maps.append(mmap.mmap(self._files[-1].fileno(), 0, access=mmap.ACCESS_READ))
        self._states = self._file_states()

    def __enter__(self) -> Tensors:
        return self

    def __exit__(self, error: type[BaseException] | None, *_: object) -> None:
        if error is None and self._told > self._began:
            log.info("%s was read in %.0f s; OpenVINO is compiling it", self._name, time.monotonic() - self._began)
        self._constants.close()
        for file in self._files:
            file.close()
        self._maps.clear()  # closing a mapping would raise an error while frames of another error refer to its bytes

    def require_unchanged(self) -> None:
        """Raises StartError if a file has been overwritten since it was mapped: then some weights are of another."""
        if self._file_states() != self._states:
            raise StartError(f"{self._name} was overwritten while it was being read; start again when it is complete")

    def _file_states(self) -> list[tuple[int, int]]:
        return [file_state(file.fileno()) for file in self._files]

    def __contains__(self, name: str) -> bool:
        return name in self.header.tensors

    def shape(self, name: str) -> list[int]:
        """Returns the dimensions of a tensor, rows first."""
        return self.header.tensors[name][::-1]

    def numbers(self, name: str) -> NDArray[np.float32]:
        """Returns a small tensor as floats."""
        shape, kind, data = self.shape(name), self.header.kinds[name], self._bytes(name)
        if kind in BLOCKS:
            numbers, scale, offset = BLOCKS[kind].read(data.reshape(-1, BLOCK_SIZES[kind][1]))
            found = numbers * scale[..., None] + (0 if offset is None else offset[..., None])
        elif kind == BF16:
            found = of_bf16(data.view(np.uint16))
        else:
            found = data.view(PLAIN[kind].to_dtype()).astype(np.float32)
        return found.reshape(shape)

    def kind(self, name: str) -> int:
        """Returns the number of a tensor's quantization type."""
        return self.header.kinds[name]

    def rows(self, name: str) -> int:
        """Returns the number of rows of a tensor; if it has several experts, the rows of all."""
        return math.prod(self.shape(name)[:-1])

    def count(self, part: TensorRows) -> int:
        """Returns the number of selected rows."""
        return len(range(*part.rows.indices(self.rows(part.tensor))))

    def matrix(self, *parts: TensorRows) -> Matrix:
        """Joins selected rows of tensors of one type and width to a matrix."""
        rows, columns = sum(map(self.count, parts)), self.shape(parts[0].tensor)[-1]
        if (kind := self.kind(parts[0].tensor)) not in BLOCKS:
            return Matrix(self._plain(parts, [rows, columns]))
        if group := self._rounded_group(parts, rows * columns, kind):
            node, offsets = _rounded(self._constants, self._pieces(parts), [rows, columns], kind, group), None
        else:
            node, offsets = _compressed(self._constants, self._pieces(parts), [rows, columns], kind)
        node.set_friendly_name(parts[0].tensor)
        return Matrix(node.output(0), offsets)

    def experts(self, *names: str, half: int | None = None) -> Any:
        """Returns the matrices of all experts [experts, rows, columns] as an output.

        Args:
            names: The tensors, of one type and shape; the rows of several tensors alternate.
            half: The half of each expert's rows that is used, 0 or 1; None if all rows are used.

        Raises:
            ValueError: The tensors have different types or shapes.
        """
        kind, (count, rows, columns) = self.kind(names[0]), self.shape(names[0])
        if any((self.kind(name), self.shape(name)) != (kind, [count, rows, columns]) for name in names):
            raise ValueError(f"{' and '.join(names)} have different types or shapes")
        parts, shape = [TensorRows(name) for name in names], [count, len(names) * rows, columns]
        if half is not None:
            order = np.arange(count * rows).reshape(count, 2, rows // 2)[:, half].reshape(-1)
            parts, shape = [TensorRows(names[0], order=order)], [count, rows // 2, columns]
        if kind not in BLOCKS:
            return self._plain(parts, shape)
        node, _ = _compressed(self._constants, self._pieces(parts, turns=half is None), shape, kind, inside=True)
        node.set_friendly_name(names[0])
        return node.output(0)

    def _rounded_group(self, parts: Sequence[TensorRows], elements: int, kind: int) -> int:
        """Decides whether a matrix is requantized to 8 bits.

        Returns the number of elements that share a scale, or 0 if not.

        Args:
            parts: The rows of the matrix.
            elements: The number of elements of the matrix.
            kind: The number of its quantization type.
        """
        blocks = BLOCKS[kind]
        if self._exact or elements < ROUNDED.start or not (blocks.offsets or blocks.group < GROUP):
            return 0
        if blocks.bits == 4:
            return GROUP if blocks.group == GROUP and elements in ROUNDED else 0
        some = np.concatenate([self._rows(part)[:: max(1, self.count(part) // SAMPLED)] for part in parts])
        error = row_error(blocks.read(some.reshape(-1, BLOCK_SIZES[kind][1])), len(some))
        return self.shape(parts[0].tensor)[-1] if error <= ROW_ERROR else GROUP

    def _plain(self, parts: Sequence[TensorRows], shape: list[int]) -> Any:
        """Returns a matrix that is not quantized as an output."""
        kind = self.kind(parts[0].tensor)
        made = NewConstant(self._constants, PLAIN[kind], shape)
        for rows in self._pieces(parts, turns=len(parts) > 1 and len(shape) > 2):
            made.append(rows)
        node = made.node() if kind == F32 else ops.convert(made.node(), "f32")
        node.set_friendly_name(parts[0].tensor)
        return node.output(0)

    def _pieces(self, parts: Sequence[TensorRows], *, turns: bool = False) -> Iterator[NDArray[np.uint8]]:
        """Yields the rows of a matrix of several parts, some at a time, as bytes of the file.

        Args:
            parts: The parts of the matrix.
            turns: Whether the rows of the parts alternate, instead of one part coming after the other.
        """
        count = max(1, PIECE // self.shape(parts[0].tensor)[-1])
        if turns:
            together = [*map(self._rows, parts)]
            for first in range(0, len(together[0]), count):
                found = np.stack([data[first : first + count] for data in together], 1)
                yield found.reshape(-1, found.shape[-1])
            return
        for part in parts:
            data = self._rows(part)
            for first in range(0, len(data if part.order is None else part.order), count):
                taken = slice(first, first + count)
                yield data[taken] if part.order is None else data[part.order[taken]]

    def _rows(self, part: TensorRows) -> NDArray[np.uint8]:
        """Returns selected rows of a tensor as bytes, in the order of the file."""
        return self._bytes(part.tensor).reshape(self.rows(part.tensor), -1)[part.rows]

    def _constant_bytes(self, name: str) -> int:
        """Returns the size of a tensor as constants in bytes. Requantized to 8 bits it may be 1.5 times as large."""
        elements, blocks = math.prod(self.shape(name)), BLOCKS.get(self.kind(name))
        if blocks is None:
            return self.header.size(name)
        return elements * blocks.bits // 8 + elements // blocks.group * 4 * (1 + blocks.offsets)

    def _bytes(self, name: str) -> NDArray[np.uint8]:
        """Returns the bytes of a tensor, and drops the pages of the file that were read before from memory."""
        self._read.add(name)
        if time.monotonic() - self._told > PROGRESS_S:
            self._told = time.monotonic()
            done, total = (sum(map(self.header.size, names)) for names in (self._read, self.header.tensors))
            log.info("%s: %d %% of %s read", self._name, 100 * done // total, human_size(total))
        part, offset = self.header.places[name]
        self._maps[part].madvise(mmap.MADV_DONTNEED)
        return np.frombuffer(self._maps[part], np.uint8, self.header.size(name), offset)


def _compressed(
    file: ConstantFile, pieces: Iterable[NDArray[np.uint8]], shape: list[int], kind: int, *, inside: bool = False
) -> tuple[Any, Any]:
    """Returns a quantized matrix as an output of 32-bit floats, and its offsets, or None.

    OpenVINO converts the integers to floats within its matrix products.

    Args:
        file: The file for the constants.
        pieces: All rows in their order, as bytes of the GGUF file.
        shape: The shape of the matrix, rows and columns last.
        kind: The number of the quantization type.
        inside: Whether offsets become zero points of the matrix, and are not returned.
    """
    blocks, (_, size) = BLOCKS[kind], BLOCK_SIZES[kind]
    rows, groups = shape[:-1], shape[-1] // blocks.group
    zeroed = inside and blocks.offsets
    floats = ov.Type.f16 if blocks.exact and not zeroed else ov.Type.f32
    numbers = NewConstant(file, ov.Type.i8 if blocks.bits == 8 else ov.Type.i4, [*rows, groups, blocks.group])
    scales = NewConstant(file, floats, [*rows, groups, 1])
    offsets = (
        NewConstant(file, ov.Type.f32, [*rows, groups, 1] if inside else [*rows, groups]) if blocks.offsets else None
    )
    for data in pieces:
        found, scale, offset = blocks.read(data.reshape(-1, size))
        if offsets is not None and offset is not None:
            if inside:
                found, scale, offset = _with_zeros(found, scale, offset)
            offsets.append(offset)
        numbers.append(in_pairs(found) if blocks.bits == 4 else found)
        scales.append(scale.astype(floats.to_dtype(), copy=False))
    node, lifts = ops.convert(numbers.node(), floats.to_string()), None if offsets is None else offsets.node()
    node = ops.multiply(ops.subtract(node, lifts) if zeroed else node, scales.node())
    node = ops.reshape(node, np.array(shape), False)
    return ops.convert(node, "f32") if floats == ov.Type.f16 else node, None if inside else lifts


def _rounded(file: ConstantFile, pieces: Iterable[NDArray[np.uint8]], shape: list[int], kind: int, group: int) -> Any:
    """Returns a matrix that is requantized to 8 bits as an output of 32-bit floats.

    Args:
        file: The file for the constants.
        pieces: All rows in their order, as bytes of the GGUF file.
        shape: The shape of the matrix.
        kind: The number of the quantization type in the file.
        group: The number of elements that share a scale.
    """
    blocks, (_, size), (rows, columns) = BLOCKS[kind], BLOCK_SIZES[kind], shape
    groups = [] if group == columns else [columns // group]
    numbers = NewConstant(file, ov.Type.i8, [rows, *groups, group])
    scales = NewConstant(file, ov.Type.f32, [rows, *groups, 1])
    for data in pieces:
        found, scale = in_eight_bits(blocks.read(data.reshape(-1, size)), blocks, group)
        numbers.append(found)
        scales.append(scale)
    node = ops.multiply(ops.convert(numbers.node(), "f32"), scales.node())
    return ops.reshape(node, np.array(shape), False) if groups else node


def _with_zeros(numbers: NDArray[np.int8], scale: Floats, offset: Floats) -> tuple[NDArray[np.int8], Floats, Floats]:
    """Returns integers, scales and zero points, so that (number - zero) * scale is number * scale + offset."""
    flat = scale == 0
    zero = -np.divide(offset, scale, out=np.ones_like(offset), where=~flat)
    return np.where(flat[..., None], np.int8(0), numbers), np.where(flat, offset, scale), zero
