"""Names what blocks on disk are valid for: one network with one cache, computed in one way on one kind of machine."""

from __future__ import annotations

import hashlib
import json
import os
import platform
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ....util.files import open_regular

FORMAT = 2
"""To be raised when the bytes of a block, or its key, mean something else."""
SAMPLES, SAMPLE_BYTES = 64, 1 << 16
"""Samples of the weights: what a file of the same size and time of change could differ in."""
NOT_COMPUTED = frozenset({"CACHE_DIR", "ENABLE_CPU_PINNING", "INFERENCE_NUM_THREADS", "PERF_COUNT"})
"""Properties of openvino that change nothing of what is computed but rounding."""


def fingerprint(
    networks: Iterable[Path], layout: Mapping[str, str], properties: Mapping[str, Any], **other: object
) -> bytes:
    """Returns 32 bytes that are the same whenever blocks computed then can be used now.

    They are the same for the same networks, layout of the cache, properties and machine.

    Args:
        networks: The files of the networks that compute the blocks.
        layout: The type and the shape of each cache tensor, by its name.
        properties: The properties with which the networks are compiled; those that do not change what is computed are
            ignored.
        **other: Everything else on which the content of a block depends.

    Raises:
        OSError: A file of a network cannot be read.
    """
    known = {
        "format": FORMAT,
        "networks": [_network(file) for file in sorted(networks)],
        "layout": dict(layout),
        "properties": {name: str(value) for name, value in properties.items() if name not in NOT_COMPUTED},
        "machine": [platform.machine(), _processor()],
        **other,
    }
    return hashlib.blake2b(json.dumps(known, sort_keys=True, default=str).encode(), digest_size=32).digest()


def _network(file: Path) -> tuple[object, ...]:
    """Returns what tells a network from others: a graph and its weights, or a file with both."""
    if file.suffix != ".xml":
        return file.name, _weights(file)
    return file.name, hashlib.blake2b(file.read_bytes(), digest_size=32).hexdigest(), _weights(file.with_suffix(".bin"))


def _weights(file: Path) -> list[object]:
    """Returns size, time of change and a hash of samples of a file that may have many GB."""
    found = hashlib.blake2b(digest_size=32)
    with open_regular(file) as opened:
        status = os.fstat(opened.fileno())
        for sample in range(SAMPLES):
            opened.seek(max(0, status.st_size - SAMPLE_BYTES) * sample // (SAMPLES - 1))
            found.update(opened.read(SAMPLE_BYTES))
    return [status.st_size, status.st_mtime_ns, found.hexdigest()]


def _processor() -> str:
    """Returns the features of the processor, by which openvino chooses how it computes."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            for line in file:
                name, _, value = line.partition(":")
                if name.strip() in ("flags", "Features"):
                    return " ".join(sorted(value.split()))
    except OSError:
        pass
    return platform.processor()
