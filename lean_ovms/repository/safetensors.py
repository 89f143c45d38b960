"""Files in the safetensors format: their header, and single tensors of float32 or of the two halves.

https://huggingface.co/docs/safetensors/index#format
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..util.files import open_regular

MAX_HEADER_BYTES = 64 << 20
FLOATS = ("F32", "F16", "BF16")


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One tensor of a file. kind: one of FLOATS. data: its numbers, little-endian, row by row."""

    kind: str
    shape: tuple[int, ...]
    data: bytes


def header(file: Path) -> dict[str, Any]:
    """Returns the header's rows by the name of their tensor; they lie within the file. Raises OSError, ValueError."""
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
        rows = {name: row for name, row in json.loads(data.read(size)).items() if name != "__metadata__"}
        ends = [row["data_offsets"][1] for row in rows.values()]
    except (KeyError, IndexError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(str(error)) from None
    if max(ends, default=0) > file_size - 8 - size:
        raise ValueError("the file ends before its tensors")
    return rows, 8 + size
