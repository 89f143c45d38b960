"""Divides the processors among replicas: whole NUMA nodes, or parts of one, with no core shared.

Linux alone says where its processors are: /sys/devices/system/node has them by NUMA node, and
/sys/devices/system/cpu/cpuN/topology says which are threads of the same core, and on which socket.
"""

from __future__ import annotations

import os
from collections.abc import Collection
from itertools import chain, pairwise
from pathlib import Path
from typing import TypeVar

from ...errors import StartError
from ...util.resources import cores

T = TypeVar("T")
Core = list[int]
"""The processors of a core: two with hyper-threading."""


def shares(count: int, root: Path = Path("/")) -> list[list[int]]:
    """Returns the processors of each of so many replicas; an empty list where they cannot be told apart.

    They cannot be where the system does not say it, and where a quota, as of a container, limits the time of the
    processors, and not which ones: fixed ones might be those that others are fixed to as well.
    Raises StartError for more replicas than cores.
    """
    if cores(root) < count:
        raise StartError(f"--engine_replicas {count}: this process may use {cores(root)} processors")
    if not hasattr(os, "sched_setaffinity"):
        return []
    allowed = os.sched_getaffinity(0)
    if cores(root) < len(allowed):
        return []
    nodes = nodes_of(allowed, root)
    if sum(map(len, nodes)) < count:  # then threads of one core are told apart, too
        nodes = [[[processor] for core in node for processor in core] for node in nodes]
    return [sorted(processor for core in share for processor in core) for share in _split(nodes, count)]


def nodes_of(allowed: Collection[int], root: Path) -> list[list[Core]]:
    """Returns the cores of each NUMA node that has some of these processors, those of one socket together."""
    system = root / "sys/devices/system"
    found = sorted(system.glob("node/node[0-9]*"), key=lambda path: int(path.name.removeprefix("node")))
    members = [[one for one in _list(path / "cpulist") if one in allowed] for path in found]
    known = {one for node in members for one in node}
    if not known.issuperset(allowed):
        members = [sorted(allowed)]
    nodes = [_cores(node, system / "cpu") for node in members if node]
    return sorted(nodes, key=lambda node: _number(system / f"cpu/cpu{node[0][0]}/topology/physical_package_id"))


def _cores(processors: list[int], cpu: Path) -> list[Core]:
    found: dict[int, Core] = {}
    for one in processors:
        siblings = _list(cpu / f"cpu{one}/topology/thread_siblings_list") or [one]
        found.setdefault(min(siblings), []).append(one)
    return [found[first] for first in sorted(found)]


def _split(nodes: list[list[Core]], count: int) -> list[list[Core]]:
    """Returns the cores of each replica: several whole nodes, or a part of one."""
    if count < len(nodes):
        return [list(chain.from_iterable(part)) for part in _parts(nodes, count)]
    numbers = [1] * len(nodes)
    while sum(numbers) < count:
        numbers[max(range(len(nodes)), key=lambda node: len(nodes[node]) / numbers[node])] += 1
    return [part for node, number in zip(nodes, numbers, strict=True) for part in _parts(node, number)]


def _parts(items: list[T], number: int) -> list[list[T]]:
    """Returns so many neighbouring parts of a list, of the same length as far as possible."""
    ends = [part * len(items) // number for part in range(number + 1)]
    return [items[start:end] for start, end in pairwise(ends)]


def _list(path: Path) -> list[int]:
    """Returns the numbers of a list such as 0-3,8; none where there is no such file."""
    try:
        text = path.read_text("ascii")
    except OSError:
        return []
    ranges = [part.split("-") for part in text.strip().split(",") if part]
    return [number for ends in ranges for number in range(int(ends[0]), int(ends[-1]) + 1)]


def _number(path: Path) -> int:
    return next(iter(_list(path)), 0)
