"""Reads LoRA adapters: for the pipelines of openvino_genai, or as arrays of weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import openvino_genai as genai

from ....config import EngineConfig
from ....engine.loading.weights import Floats, floats
from ....errors import StartError
from ....repository.safetensors import TensorInfo
from ....types import Json
from .. import files, modules
from ..feature import LoraOptions


def genai_adapters(config: EngineConfig) -> Any:
    """Returns the AdapterConfig of all adapters in lora_modules together. Raises StartError.

    Its mode is MODE_STATIC: in other modes, an adapter has no effect before the first generate(), which continuous
    batching never calls, and pipelines for images that share their networks lose it.
    """
    all_modules = modules.parse(config.of(LoraOptions).lora_modules)
    for module in all_modules:
        if not files.is_safetensors(files.weights(Path(module.path))):
            raise modules.invalid(f"openvino-genai does not read {module.path}, as --pipeline_type PAGED does")
        files.check(module, config.model_dir)  # the file may have changed since the front end read it
    pairs = [(genai.Adapter(str(files.weights(Path(m.path)))), files.scale(m)) for m in all_modules]
    return genai.AdapterConfig(pairs, genai.AdapterConfig.Mode.MODE_STATIC)


def name(text: str) -> str:
    """Returns the names of the adapters in a text that modules.dumps wrote, with the scales that are not 1."""
    return " + ".join(
        module.name if module.scale == 1.0 else f"{module.name}:{module.scale}" for module in modules.parse(text)
    )


def read(text: str, base: Json) -> tuple[float, dict[str, tuple[Floats, Floats]]]:
    """Reads the adapter that a text of modules.dumps describes.

    Args:
        text: The text.
        base: The config.json of its model.

    Returns:
        Its scale, and A [rank, width] and B [height, rank] of each layer by the layer's name.

    Raises:
        StartError: The adapter cannot be read.
    """
    [module] = modules.parse(text)
    file = files.opened(module, lambda: base)
    adapted = files.pairs(file)
    found: dict[str, dict[str, Floats]] = {name: {} for name in adapted}
    try:
        for name, tensor in file.tensors(files.layer):
            values = _limited(_scaled(tensor) if tensor.kind == "Q8_0" else floats(tensor))
            found[files.layer(name)]["A" if ".lora_A." in name else "B"] = values
        for pair in found.values():
            if module.alpha is None and (factor := file.factor(len(pair["A"]))) != 1.0:
                pair["B"] = _limited(pair["B"] * np.float32(factor))
        layers = {layer: (pair["A"], pair["B"]) for layer, pair in found.items()}
    except (OSError, ValueError, KeyError) as error:
        raise StartError(f"{file.path} is not a readable adapter: {error}") from error
    return files.scale(module), layers


def _limited(values: Floats) -> Floats:
    """Returns a matrix whose numbers are allowed. Raises ValueError for any other."""
    if not (np.abs(values) < files.MOST).all():
        raise ValueError(files.NOT_FINITE)
    return values


def _scaled(tensor: TensorInfo) -> Floats:
    """Returns a matrix of blocks of 32 numbers, each with its scale (Q8_0)."""
    blocks = np.frombuffer(tensor.data, np.dtype([("scale", "<f2"), ("numbers", "i1", 32)]))
    values: Floats = blocks["scale"].astype(np.float32)[:, None] * blocks["numbers"]
    return values.reshape(tensor.shape)
