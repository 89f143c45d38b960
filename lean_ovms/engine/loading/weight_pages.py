"""Manages the memory pages of a model's weights. Imports no openvino.

Pages of mapped files are dropped as soon as OpenVINO has packed the weights. OpenVINO (2026.4) computes with packed
copies of a network's matrices, and keeps the original constants for steps of other sizes. Pages of a mapped file can be
dropped at any time: if they are read again, they come from the file or the system's cache of it. So a network whose
file is overwritten has some old weights and some new ones, which `changed_file` detects. Only Linux reports
which files are mapped; on other systems nothing is dropped.

The packed weights are moved to pages of 2 MB if the kernel lets the process choose. A token reads all weights: at
the size of Qwen3-0.6B it takes 27 ms instead of 32. Memory that is allocated later stays in small pages
(glibc.malloc.hugetlb would change that). Rows of activations are a power of two apart, and in large pages they displace
each other in caches with physical addresses: steps with prompts took 5 to 15 % longer. A KV cache in large pages also
takes longer to be used for the first time.
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
"""The permissions of a read-only shared mapping in /proc/self/maps."""
LEAST_BYTES = 1 << 20
"""The least size in bytes of a mapping whose pages are dropped; smaller ones are those of locales, for instance."""
LEAST_CONSTANT = 1 << 16
"""The least bytes of a constant whose mapping is looked up; smaller ones are many, and seldom in another mapping."""
MADV_DONTNEED, MADV_HUGEPAGE, MADV_COLLAPSE = 4, 14, 25
"""Advice of madvise(2): free pages; let huge pages replace them later; replace them at once (Linux 6.1)."""
SETTINGS = Path("/sys/kernel/mm/transparent_hugepage")
LEAST_IN_USE = 64 << 20
"""Bytes in use below which pages are not replaced, since such small weights fit into the CPU's caches."""
RESIDENT = b"\1"
"""The byte that mincore writes for a page in memory."""
WEIGHTS = (".bin", ".safetensors")
"""The suffixes of mapped files that must not change."""
INTERVAL_S = 0.02
"""Seconds between two drops while a model is loading; OpenVINO packs some 20 MB in that time."""

_kept: dict[tuple[int, int], Any] = {}
"""The mappings by their first address and end, each with an object, such as a constant in it, that keeps it mapped."""
_files: dict[tuple[int, int], tuple[str, int, tuple[int, int]]] = {}
"""The path, descriptor, and size with modification time when it was mapped of each file, by device and inode."""


def keep(model: Any) -> None:
    """Keeps the mappings of a network's constants for the life of this process; called once it is read."""
    if not (mappings := _mappings()):
        return
    for node in model.get_ops():
        if node.get_type_name() != "Constant" or node.get_byte_size() < LEAST_CONSTANT:
            continue
        address = node.data.ctypes.data
        if found := next((place for place in mappings if place[0] <= address < place[1]), None):
            _kept[found] = node
            _watch(mappings.pop(found))
            if not mappings:
                return


def watch() -> None:
    """Adds all mapped weights, also those of openvino-genai, to the files that `changed_file` checks."""
    for path in {path for *_, path in _mapped_files() if path.endswith(WEIGHTS)}:
        _watch(path)


def _watch(path: str) -> None:
    """Adds a file to those that `changed_file` checks."""
    with contextlib.suppress(OSError):
        number = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        status = os.fstat(number)
        if _files.setdefault((status.st_dev, status.st_ino), (path, number, file_state(number)))[1] != number:
            os.close(number)


def changed_file() -> str:
    """Returns the path of a mapped file that was modified, not replaced, since it was mapped; or ""."""
    with contextlib.suppress(OSError):  # of a file system that is gone: what is mapped may still be in memory
        return next((path for path, number, before in _files.values() if file_state(number) != before), "")
    return ""


def file_state(number: int) -> tuple[int, int]:
    """Returns the size and modification time of an open file. Raises OSError."""
    status = os.fstat(number)
    return status.st_size, status.st_mtime_ns


def keep_mapping(address: int, mapped: mmap.mmap) -> None:
    """Keeps a read-only mapping at this address. The constants in it need not keep it."""
    _kept[address, address + len(mapped)] = mapped


def drop() -> None:
    """Drops the pages of the kept mappings that are in memory."""
    libc = ctypes.CDLL(None)
    for begin, end in [*_kept]:
        libc.madvise(ctypes.c_void_p(begin), ctypes.c_size_t(end - begin), MADV_DONTNEED)


@contextmanager
def dropping() -> Iterator[None]:
    """Drops pages repeatedly inside the `with` block, in which a model is loaded, to limit its peak memory."""
    done = threading.Event()

    def repeat() -> None:
        with contextlib.suppress(MemoryError, RuntimeError):  # no memory for a lock: the load itself fails and says so
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


def _mappings() -> dict[tuple[int, int], str]:
    """Returns the path of each large mapping of a file that this process only reads, by its first address and end."""
    found = {(begin, end): path for begin, end, path in _mapped_files() if end - begin >= LEAST_BYTES}
    return {place: path for place, path in found.items() if place not in _kept}


def _mapped_files() -> Iterator[tuple[int, int, str]]:
    """Yields the first address, the end and the path of each mapping of a file that this process only reads."""
    with contextlib.suppress(OSError):
        for line in MAPS.read_text().splitlines():
            addresses, access, *_, path = line.split(maxsplit=5)
            if access == READ_ONLY:
                begin, end = (int(address, 16) for address in addresses.split("-"))
                yield begin, end, path


def replace_small_pages() -> None:
    """Replaces small pages by large ones wherever all of a large one are in use, in a thread of low priority."""
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
    """Yields the first address and the end of each run of large pages whose small pages are all in use.

    Args:
        libc: The C library, whose mincore tells which pages are in use.
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
