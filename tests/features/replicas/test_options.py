"""The option of replicas, and its effect on other options."""

from __future__ import annotations

import asyncio
import json
import os
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from lean_ovms.cli.arguments import parse
from lean_ovms.config import DEMO_MODEL, Config
from lean_ovms.engine.client.engine import EngineClient, engine_of
from lean_ovms.errors import StartError
from lean_ovms.features.replicas.pool import EnginePool
from lean_ovms.features.replicas.processors import shares
from lean_ovms.models.text_model import TextModel
from tests.fakes import INFO


@pytest.mark.parametrize("flag", ["--engine_replicas", "--data-parallel-size", "-dp"])
def test_vllms_flags_set_it(flag: str) -> None:
    assert parse(["--fake_engine", "--model_name", "m", flag, "2"], {}).value("engine_replicas") == 2


@pytest.fixture
def two_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1})


@pytest.mark.usefixtures("two_processors")
async def test_two_replicas_share_what_one_engine_has() -> None:
    assert type(engine_of(Config())) is type(engine_of(Config(engine_replicas=1))) is EngineClient
    pool = engine_of(
        Config(
            engine_replicas=2,
            cache_memory_percent=25,
            max_queued_requests=9,
            max_queued_requests_per_client=4,
            max_queued_tokens_per_client=1001,
            max_num_seqs=7,
            cache_size=3,
            kv_events_config='{"topic": "kv"}',
        )
    )
    assert isinstance(pool, EnginePool)
    assert (pool.processes, pool.state, pool.pids) == (2, "loading", [])
    for number, replica in enumerate(pool.replicas):
        config = replica._config
        assert (config.cache_memory_percent, config.cache_size) == (12, 3)
        assert (config.max_queued_requests, config.max_queued_requests_per_client) == (5, 2)
        assert (config.max_queued_tokens_per_client, config.max_num_seqs) == (501, 4)
        assert json.loads(config.value("kv_events_config")) == {"topic": "kv", "data_parallel_rank": number}
        assert replica._command[-2:] == [str(number), "lean_ovms.engine.worker"]


@pytest.mark.usefixtures("two_processors")
async def test_where_processors_cannot_be_told_apart_threads_are_shared_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lean_ovms.features.replicas.pool.shares", lambda count: [])
    monkeypatch.setattr("lean_ovms.features.replicas.pool.cores", lambda: 8)
    pool = engine_of(Config(engine_replicas=2))
    assert isinstance(pool, EnginePool)
    assert [replica._config.plugin_config for replica in pool.replicas] == ['{"INFERENCE_NUM_THREADS":4}'] * 2
    pool = engine_of(Config(engine_replicas=2, plugin_config='{"INFERENCE_NUM_THREADS": 3}'))
    assert isinstance(pool, EnginePool)
    assert pool.replicas[0]._config.plugin_config == '{"INFERENCE_NUM_THREADS":3}'


@pytest.mark.usefixtures("two_processors")
async def test_compiled_models_are_written_by_one_and_read_by_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    cases: list[tuple[dict[str, Any], list[int]]] = [
        ({}, [0, 1]),
        ({"cache_dir": "/c"}, [0]),
        ({"plugin_config": '{"CACHE_DIR": "/c"}'}, [0]),
    ]
    for options, first in cases:
        pool = engine_of(Config(engine_replicas=2, **options))
        assert isinstance(pool, EnginePool)
        started, loaded = [], asyncio.Event()

        async def start(number: int, started: list[int] = started, loaded: asyncio.Event = loaded) -> None:
            started.append(number)
            await loaded.wait()

        for number, replica in enumerate(pool.replicas):
            monkeypatch.setattr(replica, "start", partial(start, number))
            monkeypatch.setattr(replica, "info", INFO, raising=False)
        starting = asyncio.create_task(pool.start())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert started == first
        loaded.set()
        await starting
        assert started == [0, 1]


@pytest.mark.usefixtures("two_processors")
async def test_a_model_takes_the_memory_of_all_its_replicas() -> None:
    one, two = (TextModel(Config(model_path=str(DEMO_MODEL), engine_replicas=count)) for count in (0, 2))
    assert two.memory_bytes == 2 * one.memory_bytes > 0


@pytest.mark.usefixtures("two_processors")
def test_more_replicas_than_processors_are_refused() -> None:
    with pytest.raises(StartError, match="--engine_replicas 3: this process may use 2 processors"):
        engine_of(Config(engine_replicas=3))


# --- which processors each has


class Machine:
    """The files in /sys of a fictitious machine. The second threads of its cores come last, as on Xeons."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root = root
        self._monkeypatch = monkeypatch

    def has(self, sockets: int, nodes: int, cores: int, threads: int = 1) -> Machine:
        """Writes the files of a machine with these sockets, nodes per socket, cores per node and threads per core."""
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


@pytest.mark.parametrize(
    ("parts", "shared"),
    [
        # Each socket gets a replica.
        ((2, 1, 4, 2), [[0, 1, 2, 3, 8, 9, 10, 11], [4, 5, 6, 7, 12, 13, 14, 15]]),
        # The nodes of a socket stay together.
        ((2, 2, 2), [[0, 1, 2, 3], [4, 5, 6, 7]]),
        ((2, 2, 2), [[0, 1], [2, 3], [4, 5], [6, 7]]),
        # A node is divided by cores, with both of their threads, and by threads only where cores are too few.
        ((2, 1, 4, 2), [[0, 1, 8, 9], [2, 3, 10, 11], [4, 5, 12, 13], [6, 7, 14, 15]]),
        ((1, 1, 1, 2), [[0], [1]]),
        # No replica has cores of two nodes where there are enough replicas.
        ((2, 1, 4), [[0, 1], [2, 3], [4, 5, 6, 7]]),
    ],
)
def test_a_machine_is_shared_out_by_sockets_nodes_and_cores(
    machine: Machine, parts: tuple[int, ...], shared: list[list[int]]
) -> None:
    machine.has(*parts)
    assert shares(len(shared), machine.root) == shared


def test_only_processors_that_this_process_may_use_are_shared_out(machine: Machine) -> None:
    machine.has(sockets=2, nodes=1, cores=4).allows({1, 2, 5, 6})
    assert shares(2, machine.root) == [[1, 2], [5, 6]]
    machine.allows({1, 2})
    assert shares(2, machine.root) == [[1], [2]]


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
