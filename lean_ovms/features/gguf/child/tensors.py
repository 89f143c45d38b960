"""Turns the tensors of a GGUF file into constants of a network; matrices stay in 4 or 8 bits, as in OpenVINO's models.

The file is mapped, and converted to OpenVINO's bit order piece by piece, so that it is never twice in memory. OpenVINO
reads scales while it compiles a network, but the integers of matrices only in the first step. Converting these takes
most of the time, so they are converted after the network is built: `Tensors.fill` does it beside the compilation.
"""

from __future__ import annotations

import logging
import math
import mmap
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
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
from .blocks import BLOCKS, GROUP, Bytes, Floats, Numbers, eight_bit_steps, in_eight_bits, in_pairs, row_error
from .constant_file import SLOW_AFTER, ConstantFile, NewConstant

log = logging.getLogger("lean_ovms.gguf")

Order = NDArray[np.int64]
Pieces = Callable[[], Iterator[NDArray[np.uint8]]]
"""A function that yields the rows of a matrix in their order, some at a time, as bytes of the GGUF file."""
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
MOST_LATE = SLOW_AFTER
"""The most bytes of integers that are converted after the network is built: as many as may go to a slow disk."""
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
            tensors.fill()
            tensors.require_unchanged()
        if header.architecture != MMPROJ:  # each network of an mmproj file uses only a part of its values
            warn_of_unused(path, header)
    except KeyError as error:
        raise StartError(f"{path} is not a complete GGUF file: it has no {error.args[0]}; {PULL_AGAIN}") from error
    except (RuntimeError, ValueError, TypeError, IndexError, ArithmeticError, OSError) as error:
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


class LateConstant(NamedTuple):
    """The integers of a matrix that are not converted yet."""

    constant: NewConstant
    """The constant for the integers."""
    pieces: Pieces
    """Yields the rows of the matrix."""
    convert: Callable[[Bytes], Numbers]
    """Converts the next rows to integers of the constant's type; it is called with all rows in their order."""

    def write(self) -> None:
        """Converts all rows. Raises OSError if a disk cannot take them."""
        for data in self.pieces():
            self.constant.append(self.convert(data))


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
        self._header = header
        self._exact = exact
        self._name = path.name
        self._read: set[str] = set()
        self._late: deque[LateConstant] = deque()
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

    def fill(self) -> bool:
        """Converts the integers of the matrices that were made. The network may be compiled meanwhile.

        Returns whether nothing has read integers before they were there: otherwise what was compiled may be wrong.
        Raises OSError if a disk cannot take them.
        """
        unread = True
        while self._late:
            unread &= self._fill_first()
        return unread

    def _fill_first(self) -> bool:
        late = self._late.popleft()
        unread = late.constant.is_unread()
        late.write()
        return unread

    def _add(self, constant: NewConstant, pieces: Pieces, convert: Callable[[Bytes], Numbers]) -> None:
        """Has the integers of a matrix converted by `fill`, or at once if nothing would tell that they are read.

        That is so if they are in memory, and in sandboxes in which all pages seem to be read.

        Args:
            constant: The constant for the integers.
            pieces: Yields the rows of the matrix.
            convert: Converts the next rows to integers of the constant's type.
        """
        late = LateConstant(constant, pieces, convert)
        if not constant.is_unread():
            late.write()
            return
        self._late.append(late)
        while sum(each.constant.size for each in self._late) > MOST_LATE:
            self._fill_first()

    def _file_states(self) -> list[tuple[int, int]]:
        return [file_state(file.fileno()) for file in self._files]

    def __contains__(self, name: str) -> bool:
        return name in self._header.tensors

    def shape(self, name: str) -> list[int]:
        """Returns the dimensions of a tensor, rows first."""
        return self._header.tensors[name][::-1]

    def numbers(self, name: str) -> NDArray[np.float32]:
        """Returns a small tensor as floats."""
        shape, kind, data = self.shape(name), self._header.kinds[name], self._bytes(name)
        if kind in BLOCKS:
            blocks, data = BLOCKS[kind], data.reshape(-1, BLOCK_SIZES[kind][1])
            scale, offset = blocks.scales(data)
            found = blocks.numbers(data) * scale[..., None] + (0 if offset is None else offset[..., None])
        elif kind == BF16:
            found = of_bf16(data.view(np.uint16))
        else:
            found = data.view(PLAIN[kind].to_dtype()).astype(np.float32)
        return found.reshape(shape)

    def kind(self, name: str) -> int:
        """Returns the number of a tensor's quantization type."""
        return self._header.kinds[name]

    def rows(self, name: str) -> int:
        """Returns the number of rows of a tensor; if it has several experts, the rows of all."""
        return math.prod(self.shape(name)[:-1])

    def count(self, part: TensorRows) -> int:
        """Returns the number of selected rows."""
        return len(range(*part.rows.indices(self.rows(part.tensor))))

    def matrix(self, *parts: TensorRows) -> Matrix:
        """Joins selected rows of tensors of one type and width to a matrix, whose integers `fill` may convert."""
        rows, columns = sum(map(self.count, parts)), self.shape(parts[0].tensor)[-1]
        if (kind := self.kind(parts[0].tensor)) not in BLOCKS:
            return Matrix(self._plain(parts, [rows, columns]))
        pieces = partial(self._pieces, parts)
        if group := self._rounded_group(parts, rows * columns, kind):
            node, offsets = self._rounded(pieces, [rows, columns], kind, group), None
        else:
            node, offsets = self._compressed(pieces, [rows, columns], kind)
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
        node, _ = self._compressed(partial(self._pieces, parts, turns=half is None), shape, kind, inside=True)
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
        error = row_error(blocks.scales(some.reshape(-1, BLOCK_SIZES[kind][1])), blocks, len(some))
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
            return self._header.size(name)
        return elements * blocks.bits // 8 + elements // blocks.group * 4 * (1 + blocks.offsets)

    def _bytes(self, name: str) -> NDArray[np.uint8]:
        """Returns the bytes of a tensor, and drops the pages of the file that were read before from memory."""
        self._read.add(name)
        if time.monotonic() - self._told > PROGRESS_S:
            self._told = time.monotonic()
            done, total = (sum(map(self._header.size, names)) for names in (self._read, self._header.tensors))
            log.info("%s: %d %% of %s read", self._name, 100 * done // total, human_size(total))
        part, offset = self._header.places[name]
        self._maps[part].madvise(mmap.MADV_DONTNEED)
        return np.frombuffer(self._maps[part], np.uint8, self._header.size(name), offset)

    def _compressed(self, pieces: Pieces, shape: list[int], kind: int, *, inside: bool = False) -> tuple[Any, Any]:
        """Returns a quantized matrix as an output of 32-bit floats, and its offsets, or None.

        OpenVINO converts the integers to floats within its matrix products.

        Args:
            pieces: Yields all rows.
            shape: The shape of the matrix, rows and columns last.
            kind: The number of the quantization type.
            inside: Whether offsets become zero points of the matrix, and are not returned.
        """
        blocks, (_, size), file = BLOCKS[kind], BLOCK_SIZES[kind], self._constants
        rows, groups = shape[:-1], shape[-1] // blocks.group
        zeroed = inside and blocks.offsets
        floats = ov.Type.f16 if blocks.exact and not zeroed else ov.Type.f32
        numbers = NewConstant(file, ov.Type.i8 if blocks.bits == 8 else ov.Type.i4, [*rows, groups, blocks.group])
        scales = NewConstant(file, floats, [*rows, groups, 1])
        offsets = (
            NewConstant(file, ov.Type.f32, [*rows, groups, 1] if inside else [*rows, groups])
            if blocks.offsets
            else None
        )
        for data in pieces():
            scale, offset = blocks.scales(data.reshape(-1, size))
            if offsets is not None and offset is not None:
                if inside:
                    scale, offset = _as_zeros(scale, offset)
                offsets.append(offset)
            scales.append(scale.astype(floats.to_dtype(), copy=False))

        def convert(data: Bytes) -> Numbers:
            data = data.reshape(-1, size)
            found = blocks.numbers(data)
            if zeroed:
                found = np.where(blocks.scales(data)[0][..., None] == 0, np.int8(0), found)
            return in_pairs(found) if blocks.bits == 4 else found

        self._add(numbers, pieces, convert)
        node, lifts = ops.convert(numbers.node(), floats.to_string()), None if offsets is None else offsets.node()
        node = ops.multiply(ops.subtract(node, lifts) if zeroed else node, scales.node())
        node = ops.reshape(node, np.array(shape), False)
        return ops.convert(node, "f32") if floats == ov.Type.f16 else node, None if inside else lifts

    def _rounded(self, pieces: Pieces, shape: list[int], kind: int, group: int) -> Any:
        """Returns a matrix that is requantized to 8 bits as an output of 32-bit floats.

        Args:
            pieces: Yields all rows.
            shape: The shape of the matrix.
            kind: The number of the quantization type in the file.
            group: The number of elements that share a scale.
        """
        blocks, (_, size), (rows, columns) = BLOCKS[kind], BLOCK_SIZES[kind], shape
        groups = [] if group == columns else [columns // group]
        numbers = NewConstant(self._constants, ov.Type.i8, [rows, *groups, group])
        steps = NewConstant(self._constants, ov.Type.f32, [rows, *groups, 1])
        for data in pieces():
            steps.append(eight_bit_steps(blocks.scales(data.reshape(-1, size)), blocks, group))
        found, done = steps.node(), 0

        def convert(data: Bytes) -> Numbers:
            nonlocal done
            data, first = data.reshape(-1, size), done
            done += len(data) * BLOCK_SIZES[kind][0] // group
            return in_eight_bits(blocks.numbers(data), blocks.scales(data), found.data.reshape(-1)[first:done])

        self._add(numbers, pieces, convert)
        node = ops.multiply(ops.convert(numbers.node(), "f32"), found)
        return ops.reshape(node, np.array(shape), False) if groups else node


def _as_zeros(scale: Floats, offset: Floats) -> tuple[Floats, Floats]:
    """Returns scales and zero points, so that (number - zero) * scale is number * scale + offset.

    The numbers of a group whose scale was 0 must become 0.
    """
    flat = scale == 0
    zero = -np.divide(offset, scale, out=np.ones_like(offset), where=~flat)
    return np.where(flat, offset, scale), zero
