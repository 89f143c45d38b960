"""Divides the processors among replicas: whole NUMA nodes or parts of one, without shared cores.

Only Linux reveals the topology: /sys/devices/system/node has the processors by NUMA node, and
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
"""The processors of one core, of which hyper-threading gives two."""


def shares(count: int, root: Path = Path("/")) -> list[list[int]]:
    """Returns the processors for each of `count` replicas; empty lists if the processors cannot be assigned.

    They cannot if the system does not reveal the topology. Nor can they if a quota limits the processor time without
    fixing the processors, as in a container, since other containers might use the same ones. Raises StartError for more
    replicas than cores.
    """
    if cores(root) < count:
        raise StartError(f"--engine_replicas {count}: this process may use {cores(root)} processors")
    if not hasattr(os, "sched_setaffinity"):
        return []
    allowed = os.sched_getaffinity(0)
    if cores(root) < len(allowed):
        return []
    nodes = nodes_of(allowed, root)
    if sum(map(len, nodes)) < count:  # then threads of the same core are divided as well
        nodes = [[[processor] for core in node for processor in core] for node in nodes]
    return [sorted(processor for core in share for processor in core) for share in _split(nodes, count)]


def nodes_of(allowed: Collection[int], root: Path) -> list[list[Core]]:
    """Returns the cores of each NUMA node that has any of these processors; nodes of the same socket come together."""
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
    """Divides a list into contiguous parts of nearly equal length."""
    ends = [part * len(items) // number for part in range(number + 1)]
    return [items[start:end] for start, end in pairwise(ends)]


def _list(path: Path) -> list[int]:
    """Returns the numbers in a file with a list such as 0-3,8; [] if there is no such file."""
    try:
        text = path.read_text("ascii")
    except OSError:
        return []
    ranges = [part.split("-") for part in text.strip().split(",") if part]
    return [number for ends in ranges for number in range(int(ends[0]), int(ends[-1]) + 1)]


def _number(path: Path) -> int:
    return next(iter(_list(path)), 0)
