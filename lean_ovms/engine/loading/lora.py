"""LoRA adapters: those that a pipeline of openvino_genai is built with, and the weights of one as arrays."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import openvino_genai as genai

from ... import lora_modules
from ...config import EngineConfig
from ...errors import StartError
from ...repository import lora, safetensors
from .weights import Floats, floats


def adapters(config: EngineConfig) -> Any:
    """Returns the AdapterConfig of all adapters in lora_modules together. Raises StartError.

    MODE_STATIC: in the others an adapter is asleep until the first generate(), which continuous batching never calls,
    and pipelines for images that share their networks lose it.
    """
    modules = lora_modules.parse(config.lora_modules)
    for module in modules:
        lora.check(module, config.model_dir)  # it may be another file than when the front end read it
    found = [(genai.Adapter(str(lora.weights(Path(m.path)))), lora.scale(m)) for m in modules]
    return genai.AdapterConfig(found, genai.AdapterConfig.Mode.MODE_STATIC)


def name(text: str) -> str:
    """Returns the name of a module as lora_modules.dumps writes it."""
    [module] = lora_modules.parse(text)
    return module.name


def read(text: str) -> tuple[float, dict[str, tuple[Floats, Floats]]]:
    """Reads a module as lora_modules.dumps writes it: its scale, and A [rank, width] and B [height, rank] by name of
    the layer. Raises StartError."""
    [module] = lora_modules.parse(text)
    file = lora.weights(Path(module.path))
    adapted = lora.pairs(file)
    found: dict[str, dict[str, Floats]] = {name: {} for name in adapted}
    try:
        for name, tensor in safetensors.tensors(file, lora.layer):
            values = floats(tensor)
            if not (np.abs(values) < lora.MOST).all():
                raise ValueError(lora.NOT_FINITE)
            found[lora.layer(name)]["A" if ".lora_A." in name else "B"] = values
        layers = {layer: (pair["A"], pair["B"]) for layer, pair in found.items()}
    except (OSError, ValueError, KeyError) as error:
        raise StartError(f"{file} is not an adapter that can be read: {error}") from error
    return lora.scale(module), layers
