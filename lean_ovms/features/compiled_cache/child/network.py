"""A network in the form that openvino's plugin for CPUs has it in before it becomes code, and back.

openvino writes that form itself where it has a directory for compiled networks; what it lacks for networks with paged
attention is the sizes of heads, and which constants keep their types (2026.4). Compiling it again takes half of the
time or less, since most passes over the network find nothing to do.
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

from ....engine.loading.plugin import cpu_plugin
from ....engine.paged.network import ATTENTION
from .store import GRAPH, WEIGHTS, KeptNetwork, NotAsWritten, checksum

HEAD_BYTES = 1 << 16
"""Bytes of a file of openvino's in which its table of contents begins."""
CONTENTS = struct.Struct("<6Q")
"""The table: where its end is, the bytes of what a user adds, where constants begin and their bytes, and where the
operations begin and their bytes. Places are counted from the table's own."""
CONSTANT = re.compile(rb'(<data [^>]*\boffset=")(\d+)')
"""The place of a constant in the text of a network."""
KEPT = "keep_const_precision_0"
"""openvino's name for the mark of constants whose type stays: by then they have the one that they are to have."""
UNKNOWN_FORM = "openvino writes networks in a form that is not known"
FREE = frozenset({"Convert", "Reorder"})
"""Operations that the second compilation may save: constants have their types by then."""
DATA = frozenset({"Const", "Input"})
"""What is no operation."""


def head_sizes(model: Any) -> dict[str, dict[str, int]]:
    """Returns the sizes of the heads of each attention of a network, by its name."""
    return {
        node.get_friendly_name(): {name: int(value.value) for name, value in dict(node.get_rt_info()).items()}
        for node in model.get_ops()
        if node.get_type_name() == ATTENTION
    }


def compile_and_write(core: Any, model: Any, device: str, properties: dict[str, Any], folder: Path) -> Any:
    """Compiles a network, which openvino writes into an empty folder.

    Args:
        core: The openvino.Core.
        model: The network.
        device: OpenVINO's device.
        properties: OpenVINO's properties of the network.
        folder: The folder.

    Returns:
        The openvino.CompiledModel.

    Raises:
        RuntimeError: From openvino.
    """

    def write(text: bytes) -> bytes:
        (folder / GRAPH).write_bytes(text)
        return text

    writing = {
        "CACHE_DIR": str(folder),
        "CACHE_MODE": "OPTIMIZE_SPEED",
        "CACHE_ENCRYPTION_CALLBACKS": [write, bytes],  # what is encrypted is the text of the operations
    }
    return core.compile_model(model, device, properties | writing)


def in_known_form(folder: Path) -> None:
    """Gives what openvino wrote the form that `read` reads: operations, and constants in a file with other things.

    Raises OSError, and ValueError where openvino writes networks in another form than is known.
    """
    blobs = [*folder.glob("*.blob")]
    if len(blobs) != 1 or not (folder / GRAPH).is_file():
        raise ValueError(UNKNOWN_FORM)
    begin, text = _constants(blobs[0]), (folder / GRAPH).read_bytes()
    text = CONSTANT.sub(lambda found: found[1] + str(int(found[2]) + begin).encode(), text)
    (folder / GRAPH).write_bytes(text)
    blobs[0].rename(folder / WEIGHTS)


def _constants(blob: Path) -> int:
    """Returns where constants begin in a file of openvino's. Raises OSError, and ValueError."""
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
    """Returns a network of a folder, and the openvino.Core that compiles it.

    Args:
        folder: The folder.
        entry: What is known of the network.

    Raises:
        NotAsWritten: The operations are not as they were written. The constants are not looked at.
        OSError: A file cannot be read.
        RuntimeError: From openvino.
    """
    if checksum(folder / GRAPH) != entry.graph:
        raise NotAsWritten("its operations are not as they were written")
    core = ov.Core()  # one of its own: with the plugin's operations it knows those that only compiled networks have
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
    """Returns whether two compiled networks have the same operations, or the second one lacks conversions alone."""
    first, second = _operations(compiled), _operations(again)
    return not second - first and all(kind in FREE for kind, *_ in first - second)


def _operations(compiled: Any) -> Counter[tuple[str, ...]]:
    """Returns how often a compiled network has each operation, by its kind, its code, and its types and layouts."""
    found: Counter[tuple[str, ...]] = Counter()
    for node in compiled.get_runtime_model().get_ops():
        about = {name: str(value.value) for name, value in dict(node.get_rt_info()).items()}
        names = ("layerType", "primitiveType", "runtimePrecision", "outputPrecisions", "outputLayouts")
        found[tuple(about.get(name, "") for name in names)] += 1
    return Counter({operation: count for operation, count in found.items() if operation[0] not in DATA})
