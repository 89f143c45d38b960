"""Weights in mapped files leave the memory of this process as soon as OpenVINO has packed them.

OpenVINO (2026.4) computes with packed copies of a network's matrices, and keeps the constants that these were made of
for steps of other sizes. Pages of a mapped file can be dropped at any time: what is read again comes from the file, or
from the system's cache of it. Only Linux tells what is mapped; elsewhere nothing is dropped. Imports no openvino.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

MAPS = Path("/proc/self/maps")
READ_ONLY = "r--s"
"""The access of shared mappings that are only read, as it stands in /proc/self/maps."""
LEAST_BYTES = 1 << 20
"""Smaller mappings, such as those of locales, stay as they are."""
LEAST_CONSTANT = 1 << 16
"""Bytes of constants of which the mapping is looked up: smaller ones are many, and seldom in another mapping."""
MADV_DONTNEED = 4
"""From linux/mman.h."""
INTERVAL_S = 0.02
"""Seconds between two drops while a model is loaded: OpenVINO packs some 20 MB meanwhile."""

_kept: dict[tuple[int, int], Any] = {}
"""The first address and the end of each mapping, with what keeps it from being unmapped, such as a constant in it."""


def keep(model: Any) -> None:
    """Keeps the mappings in which a network that was just read has constants, for the life of this process."""
    if not (mappings := _mappings()):
        return
    for node in model.get_ops():
        if node.get_type_name() != "Constant" or node.get_byte_size() < LEAST_CONSTANT:
            continue
        address = node.data.ctypes.data
        if found := next((place for place in mappings if place[0] <= address < place[1]), None):
            _kept[found] = node
            mappings.remove(found)
            if not mappings:
                return


def keep_mapping(address: int, mapped: mmap.mmap) -> None:
    """Keeps a mapping that is only read, at this address; constants in it need not keep it."""
    _kept[address, address + len(mapped)] = mapped


def drop() -> None:
    """Drops the pages of these mappings that are in memory."""
    libc = ctypes.CDLL(None)
    for begin, end in [*_kept]:
        libc.madvise(ctypes.c_void_p(begin), ctypes.c_size_t(end - begin), MADV_DONTNEED)


@contextmanager
def dropping() -> Iterator[None]:
    """Drops pages again and again while a model is loaded, so that its peak of memory has few of them."""
    done = threading.Event()

    def repeat() -> None:
        while not done.wait(INTERVAL_S):
            drop()

    thread = threading.Thread(target=repeat, name="drop", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
        drop()


def _mappings() -> list[tuple[int, int]]:
    """Returns the first address and the end of each large mapping of a file that this process only reads."""
    found = []
    with contextlib.suppress(OSError):
        for line in MAPS.read_text().splitlines():
            addresses, access, *_ = line.split(maxsplit=2)
            begin, end = (int(address, 16) for address in addresses.split("-"))
            if access == READ_ONLY and end - begin >= LEAST_BYTES and (begin, end) not in _kept:
                found.append((begin, end))
    return found
