"""Reads LoRA adapters: for the pipelines of openvino_genai, or as arrays of weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import openvino_genai as genai

from ....config import EngineConfig
from ....engine.loading.weights import Floats, floats
from ....errors import StartError
from ....repository import safetensors
from .. import files, modules
from ..feature import LoraOptions


def genai_adapters(config: EngineConfig) -> Any:
    """Returns the AdapterConfig of all adapters in lora_modules together. Raises StartError.

    Its mode is MODE_STATIC: in other modes, an adapter has no effect before the first generate(), which continuous
    batching never calls, and pipelines for images that share their networks lose it.
    """
    all_modules = modules.parse(config.of(LoraOptions).lora_modules)
    for module in all_modules:
        files.check(module, config.model_dir)  # the file may have changed since the front end read it
    pairs = [(genai.Adapter(str(files.weights(Path(m.path)))), files.scale(m)) for m in all_modules]
    return genai.AdapterConfig(pairs, genai.AdapterConfig.Mode.MODE_STATIC)


def name(text: str) -> str:
    """Returns the name of the adapter in a text that modules.dumps wrote."""
    [module] = modules.parse(text)
    return module.name


def read(text: str) -> tuple[float, dict[str, tuple[Floats, Floats]]]:
    """Reads the adapter that a text of modules.dumps describes.

    Returns its scale, and A [rank, width] and B [height, rank] of each layer by the layer's name. Raises StartError.
    """
    [module] = modules.parse(text)
    file = files.weights(Path(module.path))
    adapted = files.pairs(file)
    found: dict[str, dict[str, Floats]] = {name: {} for name in adapted}
    try:
        for name, tensor in safetensors.tensors(file, files.layer):
            values = floats(tensor)
            if not (np.abs(values) < files.MOST).all():
                raise ValueError(files.NOT_FINITE)
            found[files.layer(name)]["A" if ".lora_A." in name else "B"] = values
        layers = {layer: (pair["A"], pair["B"]) for layer, pair in found.items()}
    except (OSError, ValueError, KeyError) as error:
        raise StartError(f"{file} is not a readable adapter: {error}") from error
    return files.scale(module), layers
