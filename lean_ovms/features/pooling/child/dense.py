"""Reads the linear layers after the network of a model, which exports leave out: those of sentence-transformers' Dense
modules, and the last layer of a ColBERT model."""

from __future__ import annotations

from pathlib import Path

from ....engine.loading.weights import floats
from ....errors import StartError
from ....repository import safetensors
from ..types import AND, TOKEN_EMBED, VECTORS, PoolingInfo
from .files import DenseModule, PoolingFiles
from .model_kind import MODEL
from .pooler import Array
from .pooling_graph import ACTIVATIONS, UNCHANGED, DenseLayer

WEIGHTS, BIAS = "linear.weight", "linear.bias"
"""The names of the tensors of a Dense module."""
COLBERT_WEIGHTS = (WEIGHTS, "colbert_linear.weight")
"""The names of a ColBERT model's last layer in a Dense module and in the file of the whole model."""


def layers(files: PoolingFiles, info: PoolingInfo, output: str, width: int) -> list[DenseLayer]:
    """Returns the layers to apply to pooled vectors, or to the vectors of tokens of a ColBERT model.

    Args:
        files: The settings in the files of the model.
        info: The description of the model.
        output: The name of the output of the network that is used.
        width: The size of a vector of the network, before pooled ones are concatenated.

    Raises:
        StartError: A file is missing or wrong.
    """
    if info.pooling == MODEL or info.kind not in VECTORS:
        return []
    each_token = info.kind == TOKEN_EMBED
    width *= len(info.pooling.split(AND))
    found = [_layer(module) for module in files.dense_after(output, each_token=each_token)]
    if not found and each_token and info.dimensions != width:
        found = [_colbert_layer(files.path, info, width)]
    for layer in found:
        if layer.weights.shape[1] != width:
            raise StartError(
                f"a Dense module has {layer.weights.shape[1]} inputs, but its vectors have {width} numbers"
            )
        width = len(layer.weights)
    return found


def _layer(module: DenseModule) -> DenseLayer:
    """Reads the layer of a Dense module. Raises StartError."""
    if module.activation not in ACTIVATIONS:
        raise StartError(f"{module.folder}: the activation function {module.activation} is not supported")
    if module.residual:
        raise StartError(f"{module.folder}: use_residual is not supported")
    if not module.outputs:
        raise StartError(f"{module.folder / 'config.json'} does not say out_features")
    file = module.folder / "model.safetensors"
    weights = _tensor(file, WEIGHTS)
    if weights is None:
        raise StartError(
            f"{file} is missing: modules.json says that vectors go through this layer, which the export has left out; "
            "put the file of the original model there"
        )
    if len(weights) != module.outputs:
        raise StartError(f"{file}: {WEIGHTS} has the shape {list(weights.shape)}, not {module.outputs} rows as "
                         "config.json says")  # fmt: skip
    return DenseLayer(weights, _tensor(file, BIAS), module.activation)


def _colbert_layer(path: Path, info: PoolingInfo, width: int) -> DenseLayer:
    """Reads the last layer of a ColBERT model without modules.json from the file of the whole model, or of a module.

    Raises StartError.
    """
    files = (path / "1_Dense" / "model.safetensors", path / "model.safetensors")
    file = next((file for file in files if file.is_file()), None)
    if file is None:
        raise StartError(
            f"config.json says that a vector has {info.dimensions} numbers, but the network's vectors have {width}: "
            "the export has left out the last layer; put the original model's model.safetensors, or its folder "
            "1_Dense, in the folder of openvino_model.xml"
        )
    name = next((name for name in COLBERT_WEIGHTS if name in _header(file)), "")
    found = _tensor(file, name) if name else None
    if found is None:
        raise StartError(f"{file} has no tensor {' or '.join(COLBERT_WEIGHTS)}: the model's last layer")
    if found.shape != (info.dimensions, width):
        wanted = [info.dimensions, width]
        raise StartError(f"{file}: {name} has the shape {list(found.shape)}, not {wanted} as config.json says")
    return DenseLayer(found, None, UNCHANGED)


def _tensor(file: Path, name: str) -> Array | None:
    """Reads a tensor; None if there is no such file or tensor. Raises StartError."""
    if not file.is_file() or name not in _header(file):
        return None
    try:
        return floats(safetensors.tensor(file, name))
    except (OSError, ValueError) as error:
        raise StartError(f"{file} cannot be read: {error}") from None


def _header(file: Path) -> dict[str, object]:
    """Reads the header of a file. Raises StartError."""
    try:
        return safetensors.header(file)
    except (OSError, ValueError) as error:
        raise StartError(f"{file} cannot be read: {error}") from None
