"""The pages of memory that a model's weights are in. Imports no openvino.

Those of mapped files leave this process as soon as OpenVINO has packed the weights. OpenVINO (2026.4) computes with
packed copies of a network's matrices, and keeps the constants that these were made of for steps of other sizes. Pages
of a mapped file can be dropped at any time: what is read again comes from the file, or from the system's cache of it.
Only Linux tells what is mapped; elsewhere nothing is dropped.

The packed weights move into pages of 2 MB, where the kernel leaves that to the process. A token reads all weights: at
the size of Qwen3-0.6B it takes 27 ms and not 32. Memory that is allocated later stays in small pages
(glibc.malloc.hugetlb would change that). Rows of activations are a power of two apart, and in large pages they displace
each other in caches that go by physical addresses: steps with prompts took 5 to 15 % longer. And a KV cache in large
pages takes longer to be used for the first time.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
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
MADV_DONTNEED, MADV_HUGEPAGE, MADV_COLLAPSE = 4, 14, 25
"""From linux/mman.h. The second lets the kernel replace pages some time, the third at once, since Linux 6.1."""
SETTINGS = Path("/sys/kernel/mm/transparent_hugepage")
LEAST_IN_USE = 64 << 20
"""With less in use the weights are few, and in the CPU's caches."""
RESIDENT = b"\1"
"""What mincore writes for a page that is in use."""
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


def replace_small_pages() -> None:
    """Replaces the small pages of this process, wherever a large one's place is full of them.

    For a thread of its own, which then yields to those that compute.
    """
    try:
        if "[madvise]" not in (SETTINGS / "enabled").read_text():
            return
        size = int((SETTINGS / "hpage_pmd_size").read_text())
        libc = ctypes.CDLL(None)
        places = list(full_places(libc, MAPS.read_text(), size))
        if sum(end - begin for begin, end in places) < LEAST_IN_USE:
            return
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 19)  # on Linux that of this thread alone
        for begin, end in places:
            for advice in (MADV_HUGEPAGE, MADV_COLLAPSE):
                libc.madvise(ctypes.c_void_p(begin), ctypes.c_size_t(end - begin), advice)
    except (OSError, AttributeError):
        return  # it is no Linux, or its settings are hidden


def full_places(libc: ctypes.CDLL, maps: str, size: int) -> Iterator[tuple[int, int]]:
    """Yields the first address and the end of each row of large pages whose small pages are all in use.

    Args:
        libc: The C library, which tells what pages are in use.
        maps: The text of /proc/self/maps.
        size: The bytes of a large page.
    """
    small = size // mmap.PAGESIZE
    for line in maps.splitlines():
        addresses, access, _, _, inode, *name = line.split()
        if access != "rw-p" or inode != "0" or name not in ([], ["[heap]"]):
            continue
        first, last = (int(address, 16) for address in addresses.split("-"))
        first, count = -(-first // size) * size, last // size - -(-first // size)
        pages = ctypes.create_string_buffer(max(0, count) * small)
        if count <= 0 or libc.mincore(ctypes.c_void_p(first), ctypes.c_size_t(count * size), pages):
            continue
        resident, begin = pages.raw, None
        for place in range(count + 1):
            full = place < count and resident[place * small : (place + 1) * small] == RESIDENT * small
            if full and begin is None:
                begin = place
            elif not full and begin is not None:
                yield first + begin * size, first + place * size
                begin = None
