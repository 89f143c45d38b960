"""Which processors each replica gets, on machines that are made up."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from lean_ovms.errors import StartError
from lean_ovms.features.replicas.processors import shares


class Machine:
    """/sys of a made-up machine; the second threads of its cores come last, as on Xeons."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root = root
        self._monkeypatch = monkeypatch

    def has(self, sockets: int, nodes: int, cores: int, threads: int = 1) -> Machine:
        """nodes: of each socket. cores: of each node."""
        total = sockets * nodes * cores
        for node in range(sockets * nodes):
            firsts = range(node * cores, (node + 1) * cores)
            lists = [f"{firsts[0] + thread * total}-{firsts[-1] + thread * total}" for thread in range(threads)]
            self._write(f"node/node{node}/cpulist", ",".join(lists))
            for first in firsts:
                siblings = [first + thread * total for thread in range(threads)]
                for one in siblings:
                    topology = f"cpu/cpu{one}/topology"
                    self._write(f"{topology}/thread_siblings_list", ",".join(map(str, siblings)))
                    self._write(f"{topology}/physical_package_id", str(node // nodes))
        return self.allows({*range(total * threads)})

    def allows(self, processors: set[int]) -> Machine:
        self._monkeypatch.setattr(os, "sched_getaffinity", lambda pid: processors)
        return self

    def _write(self, name: str, text: str) -> None:
        path = self.root / "sys/devices/system" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(tmp_path, monkeypatch)


def test_each_socket_gets_a_replica(machine: Machine) -> None:
    machine.has(sockets=2, nodes=1, cores=4, threads=2)
    assert shares(2, machine.root) == [[0, 1, 2, 3, 8, 9, 10, 11], [4, 5, 6, 7, 12, 13, 14, 15]]


def test_the_nodes_of_a_socket_stay_together(machine: Machine) -> None:
    machine.has(sockets=2, nodes=2, cores=2)
    assert shares(2, machine.root) == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert shares(4, machine.root) == [[0, 1], [2, 3], [4, 5], [6, 7]]


def test_a_node_is_divided_by_cores_with_both_of_their_threads(machine: Machine) -> None:
    machine.has(sockets=2, nodes=1, cores=4, threads=2)
    assert shares(4, machine.root) == [[0, 1, 8, 9], [2, 3, 10, 11], [4, 5, 12, 13], [6, 7, 14, 15]]


def test_no_replica_has_cores_of_two_nodes_where_there_are_enough_replicas(machine: Machine) -> None:
    machine.has(sockets=2, nodes=1, cores=4)
    assert shares(3, machine.root) == [[0, 1], [2, 3], [4, 5, 6, 7]]


def test_only_processors_that_this_process_may_use_are_shared_out(machine: Machine) -> None:
    machine.has(sockets=2, nodes=1, cores=4).allows({1, 2, 5, 6})
    assert shares(2, machine.root) == [[1, 2], [5, 6]]
    machine.allows({1, 2})
    assert shares(2, machine.root) == [[1], [2]]


def test_threads_of_a_core_are_divided_where_cores_are_too_few(machine: Machine) -> None:
    machine.has(sockets=1, nodes=1, cores=1, threads=2)
    assert shares(2, machine.root) == [[0], [1]]


def test_a_system_without_nodes_is_one_node(machine: Machine) -> None:
    machine.allows({0, 1, 2, 3})
    assert shares(2, machine.root) == [[0, 1], [2, 3]]


def test_nothing_is_fixed_under_a_quota(machine: Machine) -> None:
    machine.has(sockets=1, nodes=1, cores=8)
    group = machine.root / "sys/fs/cgroup"
    group.mkdir(parents=True)
    (group / "cpu.max").write_text("200000 100000\n")
    assert shares(2, machine.root) == []
    with pytest.raises(StartError, match="--engine_replicas 3: this process may use 2 processors"):
        shares(3, machine.root)
