"""Writes networks as OpenVINO's CPU plugin has transformed them, before code is generated, and reads them again.

OpenVINO writes this form itself if it has a directory for compiled networks. For networks with paged attention it lacks
the sizes of heads, and which constants keep their types (2026.4). Compiling it again takes at most half of the time,
since most of OpenVINO's passes find nothing to do.
"""

from __future__ import annotations

from ....engine.loading import quiet_imports  # noqa: F401 - first, for its effect

# isort: split
import re
import struct
from collections import Counter
from pathlib import Path
from typing import Any

import openvino as ov

from ....engine.loading.settings import cpu_plugin
from ....engine.paged.network import ATTENTION
from .store import GRAPH, WEIGHTS, KeptNetwork, NotAsWritten, checksum

HEAD_BYTES = 1 << 16
"""The number of bytes at the beginning of a file of openvino's within which its table of contents begins."""
CONTENTS = struct.Struct("<6Q")
"""The table: the offset of its end, the size of custom data, and offset and size of the constants and of the
operations. Offsets are relative to the beginning of the table."""
CONSTANT = re.compile(rb'(<data [^>]*\boffset=")(\d+)')
"""The place of a constant in the text of a network."""
KEPT = "keep_const_precision_0"
"""openvino's mark of constants whose type must not change, since they already have their final type."""
UNKNOWN_FORM = "OpenVINO writes networks in an unknown format"
FREE = frozenset({"Convert", "Reorder"})
"""Operations that the second compilation may save: constants have their types by then."""
DATA = frozenset({"Const", "Input"})
"""The nodes that are data instead of operations."""


def head_sizes(model: Any) -> dict[str, dict[str, int]]:
    """Returns the sizes of the heads of each attention in a network, by the attention's name."""
    return {
        node.get_friendly_name(): {name: int(value.value) for name, value in dict(node.get_rt_info()).items()}
        for node in model.get_ops()
        if node.get_type_name() == ATTENTION
    }


def compile_and_write(core: Any, model: Any, device: str, properties: dict[str, Any], folder: Path) -> Any:
    """Compiles a network, and has OpenVINO write its transformed form into an empty folder.

    Args:
        core: The openvino.Core.
        model: The network.
        device: OpenVINO's device.
        properties: OpenVINO's properties for the network.
        folder: The empty folder.

    Returns:
        The openvino.CompiledModel.

    Raises:
        RuntimeError: OpenVINO cannot compile the network.
    """

    def write(text: bytes) -> bytes:
        (folder / GRAPH).write_bytes(text)
        return text

    writing = {
        "CACHE_DIR": str(folder),
        "CACHE_MODE": "OPTIMIZE_SPEED",
        "CACHE_ENCRYPTION_CALLBACKS": [write, bytes],  # openvino encrypts the text of the operations with these
    }
    return core.compile_model(model, device, properties | writing)


def in_known_form(folder: Path) -> None:
    """Converts the files that OpenVINO wrote to the form that `read` reads: operations, and a file with the constants.

    Raises OSError, and ValueError if OpenVINO's files have an unknown form.
    """
    blobs = [*folder.glob("*.blob")]
    if len(blobs) != 1 or not (folder / GRAPH).is_file():
        raise ValueError(UNKNOWN_FORM)
    begin, text = _constants(blobs[0]), (folder / GRAPH).read_bytes()
    text = CONSTANT.sub(lambda found: found[1] + str(int(found[2]) + begin).encode(), text)
    (folder / GRAPH).write_bytes(text)
    blobs[0].rename(folder / WEIGHTS)


def _constants(blob: Path) -> int:
    """Returns the offset of the constants in a file that OpenVINO wrote. Raises OSError and ValueError."""
    size = blob.stat().st_size
    with blob.open("rb") as file:
        head = file.read(HEAD_BYTES)
    for place in range(len(head) - CONTENTS.size):
        end, added, constants, constant_bytes, operations, operation_bytes = CONTENTS.unpack_from(head, place)
        if (end, constants, operations) == (CONTENTS.size, end + added, constants + constant_bytes) and (
            place + operations + operation_bytes == size
        ):
            return int(place + constants)
    raise ValueError(UNKNOWN_FORM)


def read(folder: Path, entry: KeptNetwork) -> tuple[Any, Any]:
    """Reads the network in a folder, and returns it with the openvino.Core that compiles it.

    Args:
        folder: The folder.
        entry: The network's entry in the cache.

    Raises:
        NotAsWritten: The file with the operations has changed. The constants are not checked.
        OSError: A file cannot be read.
        RuntimeError: OpenVINO cannot read the network.
    """
    if checksum(folder / GRAPH) != entry.graph:
        raise NotAsWritten("its operations have changed since they were written")
    core = ov.Core()  # a separate Core, to which the extension adds operations that exist only in compiled networks
    core.add_extension(cpu_plugin())
    model = core.read_model(folder / GRAPH, folder / WEIGHTS)
    for node in model.get_ops():
        kind = node.get_type_name()
        if kind == ATTENTION:
            described = node.get_rt_info()
            for name, value in entry.heads.get(node.get_friendly_name(), {}).items():
                described[name] = value
        elif kind == "Constant":
            node.get_rt_info()[KEPT] = 1
    return core, model


def computes_the_same(compiled: Any, again: Any) -> bool:
    """Returns whether two compiled networks have the same operations, except for conversions in the first one."""
    first, second = _operations(compiled), _operations(again)
    return not second - first and all(kind in FREE for kind, *_ in first - second)


def _operations(compiled: Any) -> Counter[tuple[str, ...]]:
    """Counts the operations of a compiled network by their kind, implementation, types and layouts."""
    found: Counter[tuple[str, ...]] = Counter()
    for node in compiled.get_runtime_model().get_ops():
        about = {name: str(value.value) for name, value in dict(node.get_rt_info()).items()}
        names = ("layerType", "primitiveType", "runtimePrecision", "outputPrecisions", "outputLayouts")
        found[tuple(about.get(name, "") for name in names)] += 1
    return Counter({operation: count for operation, count in found.items() if operation[0] not in DATA})
