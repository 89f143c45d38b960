"""Reads files in the safetensors format: their header, and single tensors of float32, float16 or bfloat16.

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
"""The size in bytes of a number, by the name of its type."""


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """A tensor in a file."""

    kind: str
    """The type of the numbers, one of FLOATS."""
    shape: tuple[int, ...]
    """The shape."""
    data: bytes
    """The numbers in little-endian order, row by row."""


def header(file: Path) -> dict[str, Any]:
    """Returns the header's rows by tensor, checked against the file and their shapes. Raises OSError and ValueError."""
    with open_regular(file) as data:
        return _header(data, file.stat().st_size)[0]


def tensor(file: Path, name: str) -> TensorInfo:
    """Returns the tensor of this name. Raises OSError, ValueError, and KeyError if there is none."""
    return dict(tensors(file, lambda each: each == name))[name]


def tensors(file: Path, wanted: Callable[[str], object]) -> Iterator[tuple[str, TensorInfo]]:
    """Yields the tensors for whose names `wanted` is true. Raises OSError and ValueError."""
    with open_regular(file) as data:
        rows, start = _header(data, file.stat().st_size)
        for name, row in rows.items():
            if wanted(name):
                yield name, _tensor(data, start, name, row)


def _tensor(data: Any, start: int, name: str, row: dict[str, Any]) -> TensorInfo:
    if row.get("dtype") not in FLOATS:
        raise ValueError(f"{name} has the unsupported type {row.get('dtype')}")
    begin, end = row["data_offsets"]
    data.seek(start + begin)
    return TensorInfo(row["dtype"], tuple(row["shape"]), data.read(end - begin))


def _header(data: Any, file_size: int) -> tuple[dict[str, Any], int]:
    """Returns the rows of the header, and the offset at which the tensors begin."""
    size = int.from_bytes(data.read(8), "little")
    if not 2 <= size <= min(MAX_HEADER_BYTES, file_size - 8):
        raise ValueError("its header is longer than the file")
    try:
        rows = json.loads(data.read(size))
    except RecursionError as error:
        raise ValueError(str(error)) from None
    if not isinstance(rows, dict):
        raise ValueError("its header is not an object")
    rows.pop("__metadata__", None)
    for name, row in rows.items():
        _check_row(name, row, file_size - 8 - size)
    return rows, 8 + size


def _check_row(name: str, row: Any, size: int) -> None:
    """Raises ValueError if a tensor is not within `size` bytes, or if its shape does not match its size."""
    row = row if isinstance(row, dict) else {}
    kind, shape, offsets = row.get("dtype"), row.get("shape"), row.get("data_offsets")
    if not isinstance(kind, str) or not _counts(shape) or not _counts(offsets) or len(offsets) != 2:
        raise ValueError(f"{name[:200]} has no valid dtype, shape and data_offsets")
    begin, end = offsets
    if not begin <= end <= size:
        raise ValueError(f"{name[:200]} has data_offsets outside of the file, or in the wrong order")
    if kind in FLOATS and math.prod(shape) * FLOATS[kind] != end - begin:
        raise ValueError(f"{name[:200]} has {end - begin} bytes, which does not match its shape {shape}")


def _counts(values: Any) -> bool:
    """Returns whether a value is a list of non-negative integers."""
    return isinstance(values, list) and all(type(value) is int and value >= 0 for value in values)
