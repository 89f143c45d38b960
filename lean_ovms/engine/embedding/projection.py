"""The last layer of a ColBERT model, which exports of its transformer leave out: from its own safetensors file."""

from __future__ import annotations

from pathlib import Path

from ...errors import StartError
from ...repository import safetensors
from ..loading.weights import floats
from .pooler import Array

NAMES = ("linear.weight", "colbert_linear.weight")
"""Names of the weights in sentence-transformers' Dense module and in the whole model."""


def projection(file: Path, shape: tuple[int, int]) -> Array:
    """Returns float32 [outputs, inputs] of this shape. Raises StartError."""
    try:
        name = next((name for name in NAMES if name in safetensors.header(file)), None)
        if name is None:
            raise StartError(f"{file} has no tensor {' or '.join(NAMES)}: the model's last layer")
        found = safetensors.tensor(file, name)
    except (OSError, ValueError) as error:
        raise StartError(f"{file} cannot be read: {error}") from None
    if found.shape != shape:
        raise StartError(f"{file}: {name} has the shape {list(found.shape)}, not {list(shape)} as config.json says")
    return floats(found)
