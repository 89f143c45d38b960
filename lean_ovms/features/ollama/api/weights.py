"""The weights of a model as lists of models show them: their size, precision and number."""

from __future__ import annotations

import asyncio
import hashlib
import os
from contextlib import suppress
from dataclasses import astuple, dataclass
from pathlib import Path
from weakref import WeakKeyDictionary

from ....config import Config
from ....errors import StartError
from ....models.model import Model
from ....repository import model_file
from ....repository.model_config import bytes_by_type, most_used

BITS = {"u4": 4, "i4": 4, "nf4": 4, "u8": 8, "i8": 8, "f8e4m3": 8, "f8e5m2": 8, "f16": 16, "bf16": 16, "f32": 32}
"""The number of bits of a weight by type. Constants of other types are indices and the like."""
_SUMMARIES: WeakKeyDictionary[Model, WeightsSummary] = WeakKeyDictionary()
"""The summaries that have been computed, by model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightsSummary:
    """A summary of a model's weights."""

    bytes: int = 0
    """The size in bytes."""
    precision: str = ""
    """The element type of most of the weights, as `precision` returns it; empty if unknown."""
    parameters: int = 0
    """The number of weights, including scales of quantized ones; 0 if unknown."""
    family: str = ""
    """The architecture of a single-file model as named in the file, such as qwen3; empty if unknown."""
    modified: float = 0.0
    """The Unix time at which a file was last changed."""
    digest: str = ""
    """A text of 64 hexadecimal digits that changes when a file does."""


async def weights_of(model: Model) -> WeightsSummary:
    """Returns the summary of a model's weights, which a thread reads from its files if these have changed."""
    if model.config.without_model:
        return WeightsSummary()
    known = _SUMMARIES.get(model)
    _SUMMARIES[model] = found = await asyncio.to_thread(_summary, model.config, known)
    return found


def _summary(config: Config, known: WeightsSummary | None) -> WeightsSummary:
    """Returns the summary of a model's files, or the known one if no file has changed. No weights are read."""
    path = config.model_dir
    files = model_file.parts(path) if path.is_file() else sorted(filter(_is_weights, path.glob("*")))
    found = [(file.name, stat.st_size, stat.st_mtime) for file in files if (stat := _stat(file))]
    digest = hashlib.sha256(repr(found).encode()).hexdigest()
    if known is not None and known.digest == digest:
        return known
    family, number, precision = "", 0, ""
    with suppress(StartError), model_file.reading_once(config):  # the error is reported when the model is loaded
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
        digest=digest,
    )


def _is_weights(file: Path) -> bool:
    return file.suffix in (".bin", ".xml") or model_file.is_one(file)


def _stat(file: Path) -> os.stat_result | None:
    try:
        return file.stat()
    except OSError:
        return None
