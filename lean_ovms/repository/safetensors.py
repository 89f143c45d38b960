"""Files in the safetensors format: their header, and single tensors of float32 or of the two halves.

https://huggingface.co/docs/safetensors/index#format
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..util.files import open_regular

MAX_HEADER_BYTES = 64 << 20
FLOATS = {"F32": 4, "F16": 2, "BF16": 2}
"""Bytes of a number by the name of its type."""
PART_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One tensor of a file."""

    kind: str
    """The type of the numbers, one of FLOATS."""
    shape: tuple[int, ...]
    """The shape."""
    data: bytes
    """The numbers, little-endian, row by row."""


def header(file: Path) -> dict[str, Any]:
    """Returns the header's rows by the name of their tensor; they lie within the file, and those of FLOATS have as many
    bytes as their shapes say. Raises OSError, ValueError."""
    with open_regular(file) as data:
        return _header(data, file.stat().st_size)[0]


def tensor(file: Path, name: str) -> TensorInfo:
    """Returns one tensor. Raises OSError, ValueError, KeyError: there is none of this name."""
    return dict(tensors(file, lambda each: each == name))[name]


def tensors(file: Path, wanted: Callable[[str], object]) -> Iterator[tuple[str, TensorInfo]]:
    """Returns the tensors whose names are wanted. Raises OSError, ValueError."""
    with open_regular(file) as data:
        rows, start = _header(data, file.stat().st_size)
        for name, row in rows.items():
            if wanted(name):
                yield name, _tensor(data, start, name, row)


def parts(file: Path, wanted: Callable[[str], object]) -> Iterator[tuple[str, bytes]]:
    """Returns the bytes of the tensors of FLOATS whose names are wanted, some whole numbers at a time, with the name of
    their type. Raises OSError, ValueError."""
    with open_regular(file) as data:
        rows, start = _header(data, file.stat().st_size)
        for name, row in rows.items():
            if not wanted(name) or row["dtype"] not in FLOATS:
                continue
            begin, end = row["data_offsets"]
            data.seek(start + begin)
            for at in range(begin, end, PART_BYTES):
                yield row["dtype"], data.read(min(PART_BYTES, end - at))


def _tensor(data: Any, start: int, name: str, row: dict[str, Any]) -> TensorInfo:
    if row.get("dtype") not in FLOATS:
        raise ValueError(f"{name} is of the type {row.get('dtype')}")
    begin, end = row["data_offsets"]
    data.seek(start + begin)
    return TensorInfo(row["dtype"], tuple(row["shape"]), data.read(end - begin))


def _header(data: Any, file_size: int) -> tuple[dict[str, Any], int]:
    """Returns the rows, and where the tensors begin."""
    size = int.from_bytes(data.read(8), "little")
    if not 2 <= size <= min(MAX_HEADER_BYTES, file_size - 8):
        raise ValueError("its header is longer than the file")
    try:
        rows = json.loads(data.read(size))
    except RecursionError as error:
        raise ValueError(str(error)) from None
    if not isinstance(rows, dict):
        raise ValueError("its header is no object")
    rows.pop("__metadata__", None)
    for name, row in rows.items():
        _check_row(name, row, file_size - 8 - size)
    return rows, 8 + size


def _check_row(name: str, row: Any, size: int) -> None:
    """Raises ValueError for a tensor that is not of so many bytes of tensors, or whose shape is of another size."""
    row = row if isinstance(row, dict) else {}
    kind, shape, offsets = row.get("dtype"), row.get("shape"), row.get("data_offsets")
    if not isinstance(kind, str) or not _counts(shape) or not _counts(offsets) or len(offsets) != 2:
        raise ValueError(f"{name[:200]} has no valid dtype, shape and data_offsets")
    begin, end = offsets
    if not begin <= end <= size:
        raise ValueError(f"{name[:200]} lies outside of the file, or ends before it begins")
    if kind in FLOATS and math.prod(shape) * FLOATS[kind] != end - begin:
        raise ValueError(f"{name[:200]} has {end - begin} bytes, which is not what its shape {shape} takes")


def _counts(values: Any) -> bool:
    """Returns whether this is a list of numbers that can count something."""
    return isinstance(values, list) and all(type(value) is int and value >= 0 for value in values)
