"""The last layer of a ColBERT model, which exports of its transformer leave out: from its own safetensors file."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from ...errors import StartError
from ...repository import safetensors
from .pooler import Array

NAMES = ("linear.weight", "colbert_linear.weight")
"""In sentence-transformers' Dense module and in the whole model."""


def projection(file: Path, shape: tuple[int, int]) -> Array:
    """float32 [outputs, inputs] of this shape. Raises StartError."""
    try:
        name = next((name for name in NAMES if name in safetensors.header(file)), None)
        if name is None:
            raise StartError(f"{file} has no tensor {' or '.join(NAMES)}: the model's last layer")
        found = safetensors.tensor(file, name)
    except (OSError, ValueError) as error:
        raise StartError(f"{file} cannot be read: {error}") from None
    if found.shape != shape:
        raise StartError(f"{file}: {name} has the shape {list(found.shape)}, not {list(shape)} as config.json says")
    if found.kind == "BF16":
        bits = np.frombuffer(found.data, "<u2").astype(np.uint32) << 16
        return bits.view(np.float32).reshape(shape)
    values = np.frombuffer(found.data, "<f4" if found.kind == "F32" else "<f2")
    return values.astype(np.float32).reshape(shape)
