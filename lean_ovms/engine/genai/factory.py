"""Chooses the pipeline of a model from --pipeline_type, the files and the device, and loads it.

As in OVMS: a model with vision gets a VLM pipeline and no other; AUTO means continuous batching, except on an NPU.
"""

from __future__ import annotations

from . import quiet_imports  # noqa: F401 - first, for its effect

# isort: split
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import openvino as ov

from ...config import Config
from ...errors import StartError
from ..generation.pipeline import Pipeline
from . import devices
from .continuous import ContinuousPipeline
from .settings import free_memory_bytes, resolve, resolve_stateful
from .stateful import StatefulPipeline
from .vlm_continuous import VlmContinuous
from .vlm_stateful import VlmStateful

VISION_FILES = ("openvino_text_embeddings_model.xml", "openvino_vision_embeddings_model.xml")


def load(config: Config) -> Pipeline:
    """The loaded pipeline. Raises StartError with the reason in one line."""
    config, available = on_device(config)
    kind = choose(config, available)
    if kind == "LM":
        return StatefulPipeline(config, resolve_stateful(config, available))
    if kind == "LM_CB":
        return ContinuousPipeline(config, resolve(config, free_memory_bytes(), available))
    if kind == "VLM_CB":
        return VlmContinuous(config, resolve(config, free_memory_bytes(), available))
    return VlmStateful(config, resolve_stateful(config, available))


def choose(config: Config, available: Sequence[str]) -> str:
    """LM, LM_CB, VLM or VLM_CB. Raises StartError when --pipeline_type does not fit the model."""
    vision, asked = has_vision(config.model_dir), config.pipeline_type
    if asked != "AUTO":
        if asked.startswith("VLM") != vision:
            what = "a model with vision" if vision else "a text model"
            raise StartError(f"--pipeline_type {asked}: {config.model_dir} is {what}")
        return asked
    stateful = devices.is_npu(devices.members(config.target_device, available))
    return ("VLM" if vision else "LM") + ("" if stateful else "_CB")


def has_vision(model_dir: Path) -> bool:
    """It has the networks that turn text and images into embeddings."""
    return all((model_dir / name).is_file() for name in VISION_FILES)


def on_device(config: Config) -> tuple[Config, Sequence[str]]:
    """The config with the name of an existing device, and all available devices. Raises StartError."""
    asked = config.target_device
    if asked == "CPU" and config.draft_device in ("", "CPU"):
        return config, ("CPU",)  # listing the others loads their plugins
    core = ov.Core()
    available = core.available_devices
    device = devices.choose(asked, available, lambda name: gpu_memory(core, name))
    missing = devices.missing([device, config.draft_device], available)
    if missing:
        raise StartError(f"--target_device {missing}: there is no such device here, only {', '.join(available)}")
    return replace(config, target_device=device), available


def gpu_memory(core: ov.Core, name: str) -> int:
    """Bytes of a GPU's own memory, 0 for one that shares the machine's."""
    try:
        if "discrete" not in str(core.get_property(name, "DEVICE_TYPE")).lower():
            return 0
        return int(core.get_property(name, "GPU_DEVICE_TOTAL_MEM_SIZE"))
    except (RuntimeError, TypeError, ValueError):
        return 0
