"""The weights of an OpenVINO model: their precision and size, and files that are shorter than their network says.

A network (.xml) names for each constant its type, and its place and size in the .bin file of the same name.
https://docs.openvino.ai/2026/documentation/openvino-ir-format.html
"""

from __future__ import annotations

import re
from pathlib import Path

from .model_dir import SPEECH_WEIGHTS, SPEECHT5, TOKENIZERS
from .model_dir import WEIGHTS as NETWORKS

_CONSTANT = re.compile(rb'<data element_type="(\w+)"[^>]*? offset="(\d+)" size="(\d+)"')
GIGA = 1e9
EDGE_BYTES = 1024
"""Bytes of a network's file in which its begin and its end are looked for."""


def precision(directory: Path) -> str:
    """Returns the element type of most bytes of the model's weights, such as u4 or f16; "" if that is not known."""
    network = next((directory / name for name in NETWORKS if (directory / name).is_file()), None)
    if network is None:
        return ""
    sizes: dict[str, int] = {}
    once = {place: (kind, size) for kind, place, size in _constants(network)}  # several may share one place
    for kind, size in once.values():
        sizes[kind] = sizes.get(kind, 0) + size
    return max(sizes, key=lambda kind: sizes[kind], default="")


def short_file(directory: Path, *, needed_only: bool = False) -> str:
    """Returns a sentence about a file that ends too early, as after a copy that broke off; "" if there is none.

    needed_only: of networks that no model does without, not of what else lies there.
    """
    for network in sorted(directory.glob("*.xml")):
        if needed_only and network.name not in (*NETWORKS, *SPEECH_WEIGHTS, *SPEECHT5, *TOKENIZERS):
            continue
        if _is_cut(network):
            return f"{network} ends too early: copy, pull or export the model again"
        needed = max((place + size for _, place, size in _constants(network)), default=0)
        weights = network.with_suffix(".bin")
        try:
            found = weights.stat().st_size
        except OSError:
            found = 0
        if found < needed:
            return f"{weights} has {found} of {needed} bytes: copy, pull or export the model again"
    return ""


def _is_cut(network: Path) -> bool:
    """Returns whether a network's file has a begin and no end."""
    try:
        with open(network, "rb") as file:
            begin = file.read(EDGE_BYTES)
            file.seek(max(0, network.stat().st_size - EDGE_BYTES))
            return b"<net " in begin and b"</net>" not in file.read()
    except OSError:
        return False


def memory(directory: Path, free: int) -> str:
    """Returns what the weights need and what is free, in words. free: bytes."""
    needed = sum(file.stat().st_size for file in directory.glob("*.bin"))
    return f"its weights take {needed / GIGA:.1f} GB, {free / GIGA:.1f} GB of memory are free"


def too_large(directory: Path, free: int) -> bool:
    """Returns whether the weights alone are larger than the free memory, in bytes."""
    return sum(file.stat().st_size for file in directory.glob("*.bin")) > free


def _constants(network: Path) -> list[tuple[str, int, int]]:
    """Returns type, place and size in bytes of each constant; [] for a file that cannot be read."""
    try:
        text = network.read_bytes()
    except OSError:
        return []
    return [(kind.decode(), int(place), int(size)) for kind, place, size in _CONSTANT.findall(text)]
