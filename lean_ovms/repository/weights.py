"""Reads the networks of an OpenVINO model: their file names, the precision and size of their weights, truncated files.

A network (.xml) lists the type, offset and size of each constant in the .bin file of the same name.
https://docs.openvino.ai/2026/documentation/openvino-ir-format.html
"""

from __future__ import annotations

import re
from pathlib import Path

from ..composition import compose
from . import model_file

LANGUAGE_MODEL = "openvino_language_model.xml"
TEXT_EMBEDDINGS = "openvino_text_embeddings_model.xml"
"""The file of the network that computes the embeddings of token ids, in a model with vision."""
TALKER = "openvino_talker_model.xml"
"""The file of the network for speech, which identifies an omni model."""
MTP_HEAD = "openvino_mtp_model.xml"
"""The file of a model's multi-token prediction head, which drafts tokens."""
TEXT_NETWORKS = ("openvino_model.xml", LANGUAGE_MODEL)
"""The file of a text model's network, or of the language model in a model with vision."""
TOKENIZERS = ("openvino_tokenizer.xml", "openvino_detokenizer.xml")
"""The files of the tokenizer and the detokenizer."""
_CONSTANT = re.compile(rb'<data element_type="(\w+)"[^>]*? offset="(\d+)" size="(\d+)"')
GIGA = 1e9
EDGE_BYTES = 1024
"""The number of bytes at the beginning and at the end of a network's file that are examined."""


def networks() -> tuple[str, ...]:
    """Returns the names of files each of which shows that its directory is a model."""
    return (*TEXT_NETWORKS, *(row.networks[0] for row in compose().tasks if row.networks))


def needed_networks() -> tuple[str, ...]:
    """Returns the names of networks that every model of the respective task needs."""
    return (*TEXT_NETWORKS, *(name for row in compose().tasks for name in row.networks))


def precision(directory: Path) -> str:
    """Returns the element type of most of the weights, such as u4 or f16; "" if unknown."""
    return most_used(bytes_by_type(directory))


def most_used(sizes: dict[str, int]) -> str:
    """Returns the type with the most bytes; "" if there is none."""
    return max(sizes, key=lambda kind: sizes[kind], default="")


def bytes_by_type(directory: Path) -> dict[str, int]:
    """Returns the total size in bytes of the constants of each element type; {} if the network cannot be read."""
    network = next((directory / name for name in TEXT_NETWORKS if (directory / name).is_file()), None)
    sizes: dict[str, int] = {}
    once = {place: (kind, size) for kind, place, size in _constants(network)} if network else {}  # places are shared
    for kind, size in once.values():
        sizes[kind] = sizes.get(kind, 0) + size
    return sizes


def short_file(directory: Path, *, needed_only: bool = False) -> str:
    """Returns a message about a truncated file, for instance after an interrupted copy; "" if there is none.

    With `needed_only`, it examines only the networks that every model needs.
    """
    needed = {*needed_networks(), *TOKENIZERS}
    for network in sorted(directory.glob("*.xml")):
        if needed_only and network.name not in needed:
            continue
        if _is_cut(network):
            return f"{network} is truncated: copy, pull or export the model again"
        size = max((place + size for _, place, size in _constants(network)), default=0)
        weights = network.with_suffix(".bin")
        try:
            found = weights.stat().st_size
        except OSError:
            found = 0
        if found < size:
            return f"{weights} is truncated, with {found} of {size} bytes: copy, pull or export the model again"
    return ""


def _is_cut(network: Path) -> bool:
    """Returns whether a network's file has a beginning but no end."""
    try:
        with open(network, "rb") as file:
            begin = file.read(EDGE_BYTES)
            file.seek(max(0, network.stat().st_size - EDGE_BYTES))
            return b"<net " in begin and b"</net>" not in file.read()
    except OSError:
        return False


def weights_bytes(path: Path) -> int:
    """Returns the size in bytes of the weights of a model directory or model file; 0 if they cannot be read."""
    try:
        files = [*path.iterdir(), *path.glob("*/openvino_model.bin")] if path.is_dir() else model_file.parts(path)
        return sum(file.stat().st_size for file in files if file.suffix == ".bin" or model_file.is_one(file))
    except OSError:
        return 0


def memory(directory: Path, free: int) -> str:
    """Describes how much memory the weights need, and how many bytes are free."""
    return f"its weights take {weights_bytes(directory) / GIGA:.1f} GB, and {free / GIGA:.1f} GB of memory are free"


def too_large(directory: Path, free: int) -> bool:
    """Returns whether the weights alone are larger than the free memory, given in bytes."""
    return weights_bytes(directory) > free


def _constants(network: Path) -> list[tuple[str, int, int]]:
    """Returns the type, offset and size in bytes of each constant; [] for a file that cannot be read."""
    try:
        text = network.read_bytes()
    except OSError:
        return []
    return [(kind.decode(), int(place), int(size)) for kind, place, size in _CONSTANT.findall(text)]
