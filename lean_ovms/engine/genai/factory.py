"""Loads one of openvino_genai's pipelines, on an existing device."""

from __future__ import annotations

from . import quiet_imports  # noqa: F401 - first, for its effect

# isort: split
from collections.abc import Sequence
from dataclasses import replace

import openvino as ov

from ...config import Config
from ...errors import StartError
from . import devices
from .continuous import ContinuousPipeline
from .guard.pipeline import Pipeline
from .settings import free_memory_bytes, resolve, resolve_stateful
from .stateful import StatefulPipeline
from .vlm_continuous import VlmContinuous
from .vlm_stateful import VlmStateful


def load(config: Config, kind: str, available: Sequence[str]) -> Pipeline:
    """The loaded pipeline; kind: LM, LM_CB, VLM or VLM_CB. Raises StartError with the reason in one line."""
    if kind == "LM":
        return StatefulPipeline(config, resolve_stateful(config, available))
    if kind == "LM_CB":
        return ContinuousPipeline(config, resolve(config, free_memory_bytes(), available))
    if kind == "VLM_CB":
        return VlmContinuous(config, resolve(config, free_memory_bytes(), available))
    return VlmStateful(config, resolve_stateful(config, available))


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
