"""Resolves the device option to OpenVINO devices, and has the properties for compiling tokenizers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import openvino as ov

from ...config import EngineConfig
from ...errors import StartError
from .pipeline_choice import drafts_of

# The first call of to_dtype, which tensors and constants make for their data, fills a table without the interpreter's
# lock (2026.4). A second thread that made its first call then would wait for the table and keep the lock, for ever.
# Networks are read in one thread and tokenizers in another, so this call is made before there are threads.
ov.Type.f32.to_dtype()

TOKENIZER_PROPERTIES = {"INFERENCE_NUM_THREADS": 1, "NUM_STREAMS": 1, "ENABLE_CPU_PINNING": False}
"""OpenVINO properties of tokenizers. Tokenizing has no parallel work: with more threads it takes twice the CPU time,
and waits if another process uses one of two cores (a prompt of 100 tokens: median 4.3 ms against 0.45 with one thread,
and 0.27 against 0.25 on a quiet machine; 2026-11)."""
CPU_BLOCK = 32
OTHER_BLOCK = 16
"""Tokens per KV block on a device that is not known to be a CPU. The smaller size is assumed for unknown devices: it
overstates the use of the cache, while understating it would make GenAI end all running requests."""


def choose(option: str, available: Sequence[str], free_memory: Callable[[str], int]) -> str:
    """Returns the device to use: for "auto" the one that OVMS would choose, any other name unchanged.

    OVMS chooses the discrete GPU with the most free memory, else any GPU, else the CPU.

    Args:
        option: The name of a device, or "auto".
        available: The names of OpenVINO's devices.
        free_memory: Returns the free bytes of a GPU's memory, 0 for one that shares the machine's memory.
    """
    if option != "auto":
        return option
    gpus = [name for name in available if name.startswith("GPU")]
    return max(gpus, key=free_memory) if gpus else "CPU"


def members(device: str, available: Sequence[str]) -> list[str]:
    """Returns the devices of a name: those listed in AUTO:…, HETERO:…, MULTI:… or BATCH:…, or all for AUTO alone."""
    mode, colon, names = device.partition(":")
    if colon:
        return [name.partition("(")[0].strip() for name in names.split(",") if name.strip(" ^")]
    return list(available) if mode in ("AUTO", "HETERO", "MULTI") else [device]


def missing(devices: Sequence[str], available: Sequence[str]) -> str:
    """Returns the first of these devices that is not available, "" if all are. GPU is the same as GPU.0."""
    known = set(available) | {name.split(".")[0] for name in available} | {"AUTO", "HETERO", "MULTI", ""}
    return next((name for device in devices for name in members(device, available) if name not in known), "")


def block_size(devices: Sequence[str]) -> int:
    """Returns the number of tokens in a KV block on these devices."""
    return CPU_BLOCK if devices and all(name == "CPU" for name in devices) else OTHER_BLOCK


def is_npu(devices: Sequence[str]) -> bool:
    """Returns whether the device is an NPU, which computes one text of limited length, without paged attention."""
    return any(name.split(".")[0] == "NPU" for name in devices)


def on_device(config: EngineConfig) -> tuple[EngineConfig, Sequence[str]]:
    """Returns the config with an existing device, and the names of all devices. Raises StartError."""
    draft_device = drafts_of(config).device
    if config.target_device == "CPU" and draft_device in ("", "CPU"):
        return config, ("CPU",)  # listing the others loads their plugins
    core = ov.Core()
    available = core.available_devices
    device = choose(config.target_device, available, lambda name: gpu_memory(core, name))
    unknown = missing([device, draft_device], available)
    if unknown:
        raise StartError(f"--target_device {unknown}: this machine has no such device, only {', '.join(available)}")
    return config.replace(target_device=device), available


def device_of(config: EngineConfig) -> str:
    """Returns the name of the device that a config selects. Raises StartError if it does not exist."""
    return on_device(config)[0].target_device


def gpu_memory(core: ov.Core, name: str) -> int:
    """Returns the bytes of a GPU's own memory, 0 for one that shares the machine's memory."""
    try:
        if "discrete" not in str(core.get_property(name, "DEVICE_TYPE")).lower():
            return 0
        return int(core.get_property(name, "GPU_DEVICE_TOTAL_MEM_SIZE"))
    except (RuntimeError, TypeError, ValueError):
        return 0


def cpu_plugin() -> str:
    """Returns the path of openvino's CPU plugin, which also has the operations of compiled networks, or its folder."""
    folder = Path(ov.__file__).parent / "libs"
    return str(next(folder.glob("*openvino_*_cpu_plugin.*"), folder))
