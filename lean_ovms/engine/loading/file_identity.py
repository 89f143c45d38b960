"""Identifies the files of a network, and the machine's processor, for cache keys. Imports no openvino."""

from __future__ import annotations

import hashlib
import os
import platform
from pathlib import Path

from ...util.files import open_regular

SAMPLES, SAMPLE_BYTES = 64, 1 << 16
"""The hashed samples of the weights, which reveal a change that keeps the file's size and modification time."""


def of_network(file: Path) -> tuple[object, ...]:
    """Returns a key that identifies a network: its graph and weights, or one file with both. Raises OSError."""
    if file.suffix != ".xml":
        return file.name, _weights(file)
    return file.name, hashlib.blake2b(file.read_bytes(), digest_size=32).hexdigest(), _weights(file.with_suffix(".bin"))


def of_machine() -> list[str]:
    """Returns the kind and the features of the processor, which decide how openvino computes."""
    return [platform.machine(), _processor()]


def _weights(file: Path) -> list[object]:
    """Returns the size and modification time of a file, which may have many GB, and a hash of samples of it."""
    found = hashlib.blake2b(digest_size=32)
    with open_regular(file) as opened:
        status = os.fstat(opened.fileno())
        for sample in range(SAMPLES):
            opened.seek(max(0, status.st_size - SAMPLE_BYTES) * sample // (SAMPLES - 1))
            found.update(opened.read(SAMPLE_BYTES))
    return [status.st_size, status.st_mtime_ns, found.hexdigest()]


def _processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            for line in file:
                name, _, value = line.partition(":")
                if name.strip() in ("flags", "Features"):
                    return " ".join(sorted(value.split()))
    except OSError:
        pass
    return platform.processor()
