"""Engines of adapters: started by the first request, stopped when idle, no more than may be at once."""

import asyncio

import pytest

from lean_ovms.config import Config
from lean_ovms.engine.client.lazy_engine import EngineSlots, LazyEngine
from lean_ovms.errors import StartError, TooManyRequests, Unavailable
from lean_ovms.types import EngineStats

ZERO = EngineStats(running=0, queued=0, kv_blocks_used=0, kv_blocks_total=0, steps=0, preemptions=0, recoveries=0)


class FakeEngine:
    """client.Engine as far as it is used, with a load that ends when told."""

    info, vocabulary, pid, restarts = "info", "vocabulary", 7, 0

    def __init__(self, name="base", failure=None):
        self.name = name
        self.failure = failure
        self.loaded = asyncio.Event()
        self.busy = False
        self.stopped = False
        self.submitted = []

    async def start(self):
        await self.loaded.wait()
        if self.failure is not None:
            raise self.failure
        return self.info

    async def stop(self):
        self.stopped = True

    async def submit(self, prompt, **asked):
        assert not self.stopped
        self.submitted.append(prompt)
        return f"reply of {self.name}"

    async def encode(self, texts, add_special_tokens, client=""):
        return [[len(t)] for t in texts]

    async def stats(self):
        return "its stats"

    def unavailable(self):
        return Unavailable("base")


class House:
    """Adapters of one model with fake engines; made: the engines, in the order of their start."""

    def __init__(self, most=4, idle_s=0.0, loads=True, failures=()):
        self.base = FakeEngine()
        self.made = []
        self._slots = EngineSlots(most)
        self._idle_s = idle_s
        self._loads = loads
        self._failures = list(failures)

    async def adapter(self, name="a", **options):
        config = Config(model_name=name, lora_idle_timeout_s=self._idle_s, **options)
        one = LazyEngine(config, self.base, self._slots, self._make)
        await one.start()
        return one

    def _make(self, config):
        engine = FakeEngine(config.served_name, self._failures.pop(0) if self._failures else None)
        if self._loads:
            engine.loaded.set()
        self.made.append(engine)
        return engine


async def turns(count=10):
    for _ in range(count):
        await asyncio.sleep(0)


async def test_what_needs_no_network_starts_no_engine():
    house = House()
    adapter = await house.adapter()
    assert (adapter.state, adapter.pid) == ("ready", None)
    assert (adapter.info, adapter.vocabulary) == ("info", "vocabulary")
    assert await adapter.encode(["abc"], False) == [[3]]
    assert await adapter.stats() == ZERO
    assert house.made == []


async def test_requests_that_come_together_share_one_load():
    house = House(loads=False)
    adapter = await house.adapter()
    asked = [asyncio.create_task(adapter.submit(str(n))) for n in range(3)]
    await turns()
    assert len(house.made) == 1
    house.made[0].loaded.set()
    assert await asyncio.gather(*asked) == ["reply of a"] * 3
    assert sorted(house.made[0].submitted) == ["0", "1", "2"]
    assert await adapter.stats() == "its stats"
    await adapter.stop()


async def test_a_client_that_leaves_does_not_stop_the_load_for_others():
    house = House(loads=False)
    adapter = await house.adapter()
    gone, stays = asyncio.create_task(adapter.submit("1")), asyncio.create_task(adapter.submit("2"))
    await turns()
    gone.cancel()
    await turns()
    house.made[0].loaded.set()
    assert await stays == "reply of a"
    assert house.made[0].submitted == ["2"]
    await adapter.stop()


async def test_a_load_that_fails_is_told_and_tried_again_by_the_next_request(caplog):
    house = House(failures=[StartError("/secret/path", reason="It is broken.")])
    adapter = await house.adapter()
    with pytest.raises(Unavailable, match="It is broken") as caught:
        await adapter.submit("1")
    assert "/secret" not in str(caught.value)
    assert "/secret/path" in caplog.text
    assert house.made[0].stopped
    assert await adapter.submit("2") == "reply of a"
    await adapter.stop()


async def test_no_more_wait_for_a_load_than_may_wait_for_an_engine():
    house = House(loads=False)
    adapter = await house.adapter(max_queued_requests=1)
    first = asyncio.create_task(adapter.submit("1"))
    await turns()
    with pytest.raises(TooManyRequests):
        await adapter.submit("2")
    house.made[0].loaded.set()
    assert await first
    await adapter.stop()


async def test_the_one_that_was_idle_longest_makes_room():
    house = House(most=2)
    a, b, c = [await house.adapter(name) for name in "abc"]
    for one in (a, b, a, c):
        await one.submit("x")
        await asyncio.sleep(0.001)
    assert [engine.name for engine in house.made if not engine.stopped] == ["a", "c"]
    assert await b.submit("x") == "reply of b"
    assert [engine.name for engine in house.made if not engine.stopped] == ["c", "b"]
    for one in (a, b, c):
        await one.stop()
    assert all(engine.stopped for engine in house.made)


async def test_nobody_at_work_is_stopped_for_another():
    house = House(most=1)
    a, b = [await house.adapter(name) for name in "ab"]
    await a.submit("x")
    house.made[0].busy = True
    with pytest.raises(Unavailable) as caught:
        await b.submit("x")
    assert caught.value.retry_after_s
    assert not house.made[0].stopped
    house.made[0].busy = False
    assert await b.submit("x") == "reply of b"
    await b.stop()


async def test_an_idle_engine_is_stopped_and_a_busy_one_is_not():
    house = House(idle_s=0.02)
    adapter = await house.adapter()
    await adapter.submit("x")
    house.made[0].busy = True
    await asyncio.sleep(0.06)
    assert not house.made[0].stopped
    house.made[0].busy = False
    for _ in range(500):
        await asyncio.sleep(0.005)
        if house.made[0].stopped:
            break
    assert house.made[0].stopped
    assert (adapter.state, adapter.pid) == ("ready", None)
    assert await adapter.submit("y") == "reply of a"
    assert len(house.made) == 2
    await adapter.stop()


async def test_a_stop_ends_a_load_and_whoever_waits_for_it():
    house = House(loads=False)
    adapter = await house.adapter()
    asked = asyncio.create_task(adapter.submit("1"))
    await turns()
    await adapter.stop()
    with pytest.raises(Unavailable):
        await asked
    assert house.made[0].stopped
    with pytest.raises(Unavailable):
        await adapter.submit("2")
    assert adapter.state == "stopped"
