"""The files of a LoRA adapter: its weights, its scale, and whether it fits a model. Imports no engine.

An adapter is a .safetensors file, or a directory as peft writes it (adapter_model.safetensors, adapter_config.json).
openvino-genai 2026.4.1 multiplies an adapter's weights by alpha alone: it reads no adapter_config.json. It skips
tensors that the model has no layer for, so an adapter of another model changes nothing, without an error. Both are
handled here.
"""

from __future__ import annotations

import math
import os
import re
from pathlib import Path

from ..lora_modules import LoraModule, invalid
from ..util.files import read_text
from . import json_file, safetensors

WEIGHTS, SETTINGS = "adapter_model.safetensors", "adapter_config.json"
PREFIX = "base_model.model."
"""First part of peft's tensor names; GenAI finds no others in a language model."""
IMAGE_MODEL = "model_index.json"
"""File of a model that makes images: its adapters have the names of kohya or of diffusers, which GenAI resolves."""
_LAYER = re.compile(rf"{re.escape(PREFIX)}(.+)\.lora_[AB](?:\.\w+)?\.weight")
_KNOWN = re.compile(r'"(?:self|__module)\.([\w.]+?)(?:\.weight)?[/"]')


def weights(path: Path) -> Path:
    """Returns the .safetensors file of an adapter's file or directory. Raises StartError if there is none."""
    is_directory = os.path.isdir(path)
    file = path / WEIGHTS if is_directory else path
    if not os.path.isfile(file):
        raise invalid(f"there is no adapter at {path}" + (f" ({WEIGHTS} is missing)" if is_directory else ""))
    if file.suffix != ".safetensors":
        raise invalid(f"{file} is not a .safetensors file")
    return file


def scale(module: LoraModule) -> float:
    """Returns the factor of the adapter's weights: alpha if given, else peft's lora_alpha / rank. Raises StartError."""
    if module.alpha is not None:
        return module.alpha
    settings = weights(Path(module.path)).parent / SETTINGS
    if not settings.is_file():
        return 1.0
    try:
        found = json_file.read(settings)
        rank = float(found["r"])
        return float(found["lora_alpha"]) / (math.sqrt(rank) if found.get("use_rslora") else rank)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, ZeroDivisionError):
        raise invalid(f"{settings} has no valid lora_alpha and r") from None


def check(module: LoraModule, model_dir: Path) -> None:
    """Raise StartError for an adapter that is missing, broken, or has no layer of this model."""
    file = weights(Path(module.path))
    scale(module)
    names = tensors(file)
    if (model_dir / IMAGE_MODEL).is_file():
        if not any("lora" in name for name in names):
            raise invalid(f"{file} has no tensors of a LoRA adapter")
        return
    layers = {layer(name) for name in names} - {""}
    if not layers:
        raise invalid(f"{file} has no tensors named {PREFIX}<layer>.lora_A.weight")
    model = model_dir / "openvino_model.xml"
    if model.is_file() and not layers & set(_KNOWN.findall(read_text(model, "utf-8", "replace"))):
        raise invalid(f"{file} belongs to another model: it adapts {min(layers)}, which this model does not have")


def layer(name: str) -> str:
    """Returns the layer that a tensor belongs to, by the tensor's name; "" for one that is not of an adapter."""
    found = _LAYER.fullmatch(name)
    return found[1] if found else ""


def tensors(file: Path) -> list[str]:
    """Returns the tensor names of a .safetensors file, its header checked against the file's size. Raises
    StartError."""
    try:
        return [*safetensors.header(file)]
    except OSError as error:
        raise invalid(f"{file} cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise invalid(f"{file} is not a whole .safetensors file: {error}") from None
