"""The weights of a model, as the lists of models show them: their size, precision and number."""

from __future__ import annotations

import asyncio
import hashlib
import os
from contextlib import suppress
from dataclasses import astuple, dataclass
from pathlib import Path
from weakref import WeakKeyDictionary

from ....errors import StartError
from ....models.model import Model
from ....repository import model_file
from ....repository.weights import bytes_by_type, most_used

BITS = {"u4": 4, "i4": 4, "nf4": 4, "u8": 8, "i8": 8, "f8e4m3": 8, "f8e5m2": 8, "f16": 16, "bf16": 16, "f32": 32}
"""The bits of one weight; constants of other types are indices and the like."""
_SUMMARIES: WeakKeyDictionary[Model, WeightsSummary] = WeakKeyDictionary()
"""What was read of models."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightsSummary:
    """The weights of one model, for people."""

    bytes: int = 0
    """Their size."""
    precision: str = ""
    """The type that most of the bytes have, such as u8 or Q4_K_M; empty: not known."""
    parameters: int = 0
    """Their number, scales of quantized ones included; 0: not known."""
    family: str = ""
    """The kind of its network as a model that is one file names it, such as qwen3; empty: not known."""
    modified: float = 0.0
    """When a file was last changed, in seconds since 1970."""
    digest: str = ""
    """64 hexadecimal digits that change when a file does."""


async def weights_of(model: Model) -> WeightsSummary:
    """Returns what a model's files show of its weights, without a load. The first call reads them, in a thread."""
    if model not in _SUMMARIES:
        none = model.config.without_model
        _SUMMARIES[model] = WeightsSummary() if none else await asyncio.to_thread(_summary, model.config.model_dir)
    return _SUMMARIES[model]


def _summary(path: Path) -> WeightsSummary:
    """Returns what is known of a model directory or model file; it reads no weights, but the networks."""
    files = model_file.parts(path) if path.is_file() else sorted(filter(_is_weights, path.glob("*")))
    found = [(file.name, stat.st_size, stat.st_mtime) for file in files if (stat := _stat(file))]
    family, number, precision = "", 0, ""
    with suppress(StartError):  # a file that cannot be served, whose load says what is wrong
        if (file := model_file.of(path)) is not None:
            family, number, precision = file.config().get("model_type", ""), *astuple(file.weights())
        else:
            sizes = bytes_by_type(path)
            number = sum(8 * size // BITS[kind] for kind, size in sizes.items() if kind in BITS)
            precision = most_used(sizes)
    return WeightsSummary(
        bytes=sum(size for name, size, _ in found if not name.endswith(".xml")),
        precision=precision,
        parameters=number,
        family=family,
        modified=max((modified for _, _, modified in found), default=0.0),
        digest=hashlib.sha256(repr(found).encode()).hexdigest(),
    )


def _is_weights(file: Path) -> bool:
    return file.suffix in (".bin", ".xml") or model_file.is_one(file)


def _stat(file: Path) -> os.stat_result | None:
    try:
        return file.stat()
    except OSError:
        return None
