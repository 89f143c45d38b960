"""Large pages replace memory that a process already uses; nothing is allocated for them."""

import ctypes
import mmap
import os
import threading
from pathlib import Path

import pytest

from lean_ovms.engine.loading import weight_pages

SIZE = 1 << 21
LIBC = ctypes.CDLL(None)


@pytest.fixture
def first():
    """Yields the first of five aligned places for large pages. All small pages are in use, but in the third place
    only half."""
    memory = mmap.mmap(-1, 6 * SIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    first = -(-address // SIZE) * SIZE
    for page in range(0, 5 * SIZE, mmap.PAGESIZE):
        if page // SIZE != 2 or page % SIZE < SIZE // 2:
            memory[first - address + page] = 1
    yield first
    memory.close()


def mapping(address, file="maps"):
    """Returns the entry of /proc/self/maps, or smaps, for the mapping of an address."""
    found = []
    for line in Path(f"/proc/self/{file}").read_text().splitlines():
        begin, dash, rest = line.partition(" ")[0].partition("-")
        if dash:
            inside = int(begin, 16) <= address < int(rest, 16)
        if inside:
            found.append(line)
    return found


def test_places_are_those_whose_pages_are_all_in_use(first):
    found = list(weight_pages.full_places(LIBC, "\n".join(mapping(first)), SIZE))
    inside = [(begin, end) for begin, end in found if begin < first + 5 * SIZE and end > first]
    assert [max(begin, first) for begin, _ in inside] == [first, first + 3 * SIZE]
    assert [min(end, first + 5 * SIZE) for _, end in inside] == [first + 2 * SIZE, first + 5 * SIZE]


@pytest.mark.parametrize(
    "line", ["7f00-7f10 r--p 0 00:00 0", "7f00-7f10 rw-p 0 08:01 42 /lib", "7f00-7f10 rw-p 0 0:0 0"]
)
def test_files_constants_and_small_mappings_stay_as_they_are(line):
    assert not list(weight_pages.full_places(LIBC, line, SIZE))


def test_a_system_without_large_pages_changes_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(weight_pages, "SETTINGS", tmp_path)
    weight_pages.replace_small_pages()
    (tmp_path / "enabled").write_text("always madvise [never]")
    weight_pages.replace_small_pages()


def replace():
    thread = threading.Thread(target=weight_pages.replace_small_pages)
    thread.start()
    thread.join()


@pytest.mark.slow
def test_places_in_use_get_large_pages(first, monkeypatch):
    enabled = weight_pages.SETTINGS / "enabled"
    if not enabled.exists() or "[madvise]" not in enabled.read_text():
        pytest.skip("the kernel does not leave it to the process")
    line = "\n".join(mapping(first))
    monkeypatch.setattr(weight_pages, "full_places", lambda libc, maps, size: full_places(libc, line, size))
    replace()
    assert not any(" hg" in line for line in mapping(first, "smaps")), "it is too little"
    monkeypatch.setattr(weight_pages, "LEAST_IN_USE", SIZE)
    replace()
    flags = [[line for line in mapping(first + place * SIZE, "smaps") if "VmFlags" in line] for place in range(5)]
    assert os.getpriority(os.PRIO_PROCESS, 0) < 19
    assert [" hg" in "".join(each) for each in flags] == [True, True, False, True, True]


full_places = weight_pages.full_places
