"""Models in memory never exceed the limit, busy models are not unloaded, and each request has one outcome."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator

import pytest

from lean_ovms.config import Config
from lean_ovms.errors import RequestError, StartError, TooManyRequests, Unavailable
from lean_ovms.features.deployment import model_cache as cache_module
from lean_ovms.features.deployment.member import Member, now
from lean_ovms.features.deployment.model_cache import ModelCache
from lean_ovms.models.lifecycle import LOADED, LOADING, UNLOADED, UNLOADING, Residency
from lean_ovms.observability.records import RequestRecord, current_record
from tests.waiting import until

ARROWS = {(UNLOADED, LOADING), (LOADING, LOADED), (LOADING, UNLOADED), (LOADED, UNLOADING), (UNLOADING, UNLOADED)}
"""The changes of a model's phase that the diagram in lifecycle.py allows."""


@pytest.fixture(autouse=True)
def without_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache_module, "LINGER_S", 0.0)


class FakeModel(Residency):
    """A model that loads and unloads in a few iterations of the event loop. With a `fault` it does not load."""

    memory_bytes = 1
    phase = UNLOADED

    def __init__(self, name: str, memory: Memory, *, size: int = 1, fault: str = "", **options: object) -> None:
        super().__init__(Config(model_name=name, **options))  # type: ignore[arg-type]
        self.memory = memory
        self.memory_bytes = size
        self.fault = fault
        self.gate = asyncio.Event()
        self.gate.set()
        self.loads = 0

    def __setattr__(self, name: str, value: object) -> None:
        if name == "phase" and value != self.phase:
            assert (self.phase, value) in ARROWS or (self.retired and value == UNLOADED)
        super().__setattr__(name, value)

    @property
    def member(self) -> Member:
        assert isinstance(self.residence, Member)
        return self.residence

    async def _load(self) -> None:
        self.loads += 1
        self.memory.take(self)
        for _ in range(3):
            await asyncio.sleep(0)
        try:
            await self.gate.wait()
        except asyncio.CancelledError:
            self.memory.free(self)
            raise
        if self.fault:
            self.memory.free(self)
            raise StartError(self.fault, reason="It is broken.")

    async def _unload(self) -> None:
        assert not self.in_flight, f"{self.name} is cut"
        await asyncio.sleep(0)
        self.memory.free(self)


class Memory:
    """Records which models are in memory, and the most that ever were."""

    def __init__(self) -> None:
        self.models: list[FakeModel] = []
        self.most = 0

    @property
    def names(self) -> list[str]:
        return [model.name for model in self.models]

    def take(self, model: FakeModel) -> None:
        self.models.append(model)
        self.most = max(self.most, len(self.models))

    def free(self, model: FakeModel) -> None:
        self.models.remove(model)


@pytest.fixture
async def memory() -> Memory:
    return Memory()


@pytest.fixture
async def model_cache() -> AsyncIterator[ModelCache]:
    made = ModelCache(1)
    yield made
    await made.stop()


def models(memory: Memory, model_cache: ModelCache, names: str, group: str = "", **options: object) -> list[FakeModel]:
    found = [FakeModel(name, memory, **options) for name in names]  # type: ignore[arg-type]
    for one in found:
        model_cache.add(one, group)
    return found


async def turns(count: int = 20) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def closing(model: FakeModel) -> None:
    """Returns when the model no longer gets new requests."""
    await until(lambda: model.member.closed_since is not None)


async def use(model_cache: ModelCache, model: FakeModel) -> None:
    """Sends one short request."""
    assert await model.member.hold()
    await asyncio.sleep(0)
    assert model.loaded
    model.in_flight.remove()


async def test_the_first_request_loads_and_the_next_one_finds_it(memory: Memory, model_cache: ModelCache) -> None:
    [a] = models(memory, model_cache, "a")
    assert a.state == "unloaded"
    await use(model_cache, a)
    await use(model_cache, a)
    assert (a.loads, a.state) == (1, "loaded")


async def test_requests_that_come_together_share_one_load(memory: Memory, model_cache: ModelCache) -> None:
    [a] = models(memory, model_cache, "a")
    a.gate.clear()
    asked = [asyncio.create_task(use(model_cache, a)) for _ in range(3)]
    await turns()
    assert (a.state, len(a.member.waiters)) == ("loading", 3)
    a.gate.set()
    await asyncio.gather(*asked)
    assert (a.loads, len(a.member.waiters)) == (1, 0)


async def test_the_one_that_was_idle_longest_makes_room(memory: Memory) -> None:
    model_cache = ModelCache(2)
    a, b, c = models(memory, model_cache, "abc")
    for one in (a, b, a, c):
        await use(model_cache, one)
        await asyncio.sleep(0.001)
    assert memory.names == ["a", "c"]
    await use(model_cache, b)
    assert (memory.names, memory.most) == (["c", "b"], 2)


async def test_a_running_request_is_not_cut_and_the_next_model_waits_for_its_end(
    memory: Memory, model_cache: ModelCache
) -> None:
    a, b = models(memory, model_cache, "ab")
    await a.member.hold()
    other = asyncio.create_task(use(model_cache, b))
    await closing(a)
    late = asyncio.create_task(use(model_cache, a))  # waits behind b, otherwise b would starve
    await turns()
    assert (memory.names, late.done()) == (["a"], False)
    a.in_flight.remove()
    await asyncio.gather(other, late)
    assert (memory.names, memory.most, a.loads) == (["a"], 1, 2)


async def test_a_request_at_work_may_use_its_model_again_while_another_waits(
    memory: Memory, model_cache: ModelCache
) -> None:
    a, b = models(memory, model_cache, "ab")
    record = RequestRecord("id", "POST", "/", "", 0.0)
    token = current_record.set(record)
    try:
        await a.member.hold()
        current_record.reset(token)
        other = asyncio.create_task(use(model_cache, b))
        await closing(a)
        token = current_record.set(record)
        # Its second prompt must not wait, or both would wait forever.
        assert await asyncio.wait_for(a.member.hold(), 300)
    finally:
        current_record.reset(token)
    a.in_flight.remove()
    a.in_flight.remove()
    await other


async def test_when_the_waiting_request_leaves_the_busy_model_goes_on(memory: Memory, model_cache: ModelCache) -> None:
    a, b = models(memory, model_cache, "ab")
    await a.member.hold()
    other = asyncio.create_task(use(model_cache, b))
    await closing(a)
    other.cancel()
    await turns()
    await use(model_cache, a)
    assert (a.loads, b.loads, len(b.member.waiters)) == (1, 0, 0)
    a.in_flight.remove()


async def test_a_load_that_fails_is_an_error_for_all_and_tried_again_later(
    memory: Memory, model_cache: ModelCache, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    [a] = models(memory, model_cache, "a", fault="/secret/path")
    results = await asyncio.gather(*(a.member.hold() for _ in range(2)), return_exceptions=True)
    for error in results:
        assert isinstance(error, Unavailable)
        assert "It is broken" in error.message
        assert "/secret" not in error.message
        assert error.retry_after_s
    assert "/secret/path" in caplog.text
    with pytest.raises(Unavailable, match="It is broken"):
        await a.member.hold()
    assert a.loads == 1  # not loaded again for each request
    monkeypatch.setattr(cache_module, "RETRY_S", 0.0)
    a.member.retry_at = 0.0
    a.fault = ""
    await use(model_cache, a)
    assert a.loads == 2


async def test_a_model_that_does_not_load_leaves_those_of_its_group(memory: Memory, model_cache: ModelCache) -> None:
    a, b = models(memory, model_cache, "ab", group="g")
    b.fault = "broken"
    await use(model_cache, a)
    with pytest.raises(Unavailable):
        await b.member.hold()
    await use(model_cache, a)
    assert (a.loads, memory.names) == (1, ["a"])


async def test_groups_are_loaded_and_unloaded_together_and_permanent_stays(
    memory: Memory, model_cache: ModelCache
) -> None:
    a, b = models(memory, model_cache, "ab", group="g")
    c, d = models(memory, model_cache, "cd", group="h")
    stays = FakeModel("p", memory)
    model_cache.add(stays, "permanent", permanent=True)
    await model_cache.load(stays)
    await use(model_cache, a)
    await until(lambda: b.loaded)
    assert sorted(memory.names) == ["a", "b", "p"]
    await use(model_cache, d)
    await until(lambda: c.loaded)
    assert (sorted(memory.names), stays.loads) == (["c", "d", "p"], 1)


async def test_memory_is_free_before_the_next_one_is_loaded(memory: Memory) -> None:
    model_cache = ModelCache(free_bytes=lambda: 10 - sum(one.memory_bytes for one in memory.models))
    small, large = FakeModel("s", memory, size=4), FakeModel("l", memory, size=7)
    third = FakeModel("t", memory, size=3)
    for one in (small, large, third):
        model_cache.add(one)
    await use(model_cache, small)
    await use(model_cache, third)
    assert memory.names == ["s", "t"]
    await use(model_cache, large)
    assert memory.names == ["t", "l"]  # unloading the longest idle model was enough
    huge = FakeModel("h", memory, size=99)
    model_cache.add(huge)
    await use(model_cache, huge)  # tried without other models, because the estimate may be wrong
    assert memory.names == ["h"]


async def test_a_load_without_memory_is_tried_again_without_idle_neighbours(memory: Memory) -> None:
    model_cache = ModelCache(free_bytes=lambda: 1 << 40)  # a GPU has its own memory
    a, b, c = models(memory, model_cache, "abc")
    await use(model_cache, a)
    load = b._load

    async def tight() -> None:
        b.fault = "CL_OUT_OF_RESOURCES" if a.loaded else ""
        await load()

    b._load = tight  # type: ignore[method-assign]
    await use(model_cache, b)
    assert memory.names == ["b"]
    c.fault = "there is no file openvino_model.xml"
    with pytest.raises(Unavailable):
        await c.member.hold()
    assert memory.names == ["b"]


async def test_an_idle_model_is_unloaded_after_its_time_and_a_busy_one_is_not(memory: Memory) -> None:
    model_cache = ModelCache()
    a, b = FakeModel("a", memory), FakeModel("b", memory)
    model_cache.add(a, idle_timeout_s=0.01)
    model_cache.add(b, idle_timeout_s=0.01)
    await a.member.hold()
    await use(model_cache, b)
    await until(lambda: not b.loaded)
    assert a.loaded
    a.in_flight.remove()
    await until(lambda: not a.loaded)
    await use(model_cache, a)
    assert a.loads == 2


async def test_a_model_that_was_never_used_is_unloaded_after_its_time_and_not_before(memory: Memory) -> None:
    model_cache = ModelCache()
    stays, goes, later = (FakeModel(name, memory) for name in "abc")
    for model, seconds in ((stays, 60.0), (goes, 0.01)):
        await model.load()
        model_cache.add(model, idle_timeout_s=seconds)
    model_cache.add(later, idle_timeout_s=0.01)
    await model_cache.load(later)
    await until(lambda: not (goes.loaded or later.loaded))
    assert stays.loaded
    await model_cache.stop()


async def test_the_queue_is_bounded_in_all_and_for_each_client(memory: Memory, model_cache: ModelCache) -> None:
    [a] = models(memory, model_cache, "a", max_queued_requests=2, max_queued_requests_per_client=1)
    a.gate.clear()

    async def ask(client: str) -> None:
        record = RequestRecord("id", "POST", "/", "", 0.0)
        record.client = client
        current_record.set(record)
        await use(model_cache, a)

    first = asyncio.create_task(ask("x"))
    await turns()
    with pytest.raises(TooManyRequests) as caught:
        await asyncio.create_task(ask("x"))
    assert caught.value.retry_after_s
    second = asyncio.create_task(ask("y"))
    await turns()
    with pytest.raises(TooManyRequests):
        await asyncio.create_task(ask("z"))
    a.gate.set()
    await asyncio.gather(first, second)


async def test_nothing_waits_for_ever_behind_a_busy_model(memory: Memory, model_cache: ModelCache) -> None:
    a, b = models(memory, model_cache, "ab", engine_load_timeout_s=1.0)
    await a.member.hold()
    waiting = asyncio.create_task(use(model_cache, b))
    await turns()
    b.member._give_up(b.member.waiters[0])
    with pytest.raises(Unavailable) as caught:
        await waiting
    assert (caught.value.code, bool(caught.value.retry_after_s)) == ("models_busy", True)
    a.in_flight.remove()


async def test_a_request_that_leaves_as_its_wait_ends_keeps_no_other_waiting(
    memory: Memory, model_cache: ModelCache
) -> None:
    a, b, c = models(memory, model_cache, "abc", engine_load_timeout_s=1.0)
    await a.member.hold()
    leaving, waiting = asyncio.create_task(use(model_cache, b)), asyncio.create_task(use(model_cache, c))
    await turns()
    leaving.cancel()
    b.member._give_up(b.member.waiters[0])  # in the same iteration of the event loop
    await asyncio.wait([leaving])
    assert leaving.cancelled()
    a.in_flight.remove()
    await waiting


async def test_sleep_waits_for_running_requests_and_wake_up_restores(memory: Memory) -> None:
    model_cache = ModelCache()
    a, b, c = models(memory, model_cache, "abc")
    await a.member.hold()
    await use(model_cache, b)
    asleep = asyncio.create_task(model_cache.sleep())
    await until(lambda: not b.loaded)
    assert (model_cache.asleep, a.loaded, asleep.done()) == (True, True, False)
    with pytest.raises(Unavailable) as caught:
        await c.member.hold()
    assert caught.value.code == "sleeping"
    a.in_flight.remove()
    await asleep
    assert (memory.names, a.state) == ([], "sleeping")
    await model_cache.sleep()  # a second time
    assert await model_cache.wake_up() == []
    assert (sorted(memory.names), model_cache.asleep, c.loads) == (["a", "b"], False, 0)
    await use(model_cache, c)


async def test_sleep_without_unloading_only_refuses(memory: Memory, model_cache: ModelCache) -> None:
    [a] = models(memory, model_cache, "a")
    await use(model_cache, a)
    await model_cache.sleep(keeps=True)
    with pytest.raises(Unavailable):
        await a.member.hold()
    assert a.loaded
    await model_cache.wake_up()
    await use(model_cache, a)
    assert a.loads == 1


async def test_requests_that_wait_when_it_goes_to_sleep_are_answered(memory: Memory, model_cache: ModelCache) -> None:
    a, b = models(memory, model_cache, "ab")
    await a.member.hold()
    waiting = asyncio.create_task(use(model_cache, b))
    await turns()
    asleep = asyncio.create_task(model_cache.sleep())
    with pytest.raises(Unavailable) as caught:
        await waiting
    assert caught.value.code == "sleeping"
    a.in_flight.remove()
    await asleep


async def test_a_wake_up_names_what_cannot_be_loaded(memory: Memory) -> None:
    model_cache = ModelCache()
    a, b = models(memory, model_cache, "ab")
    await use(model_cache, a)
    await use(model_cache, b)
    await model_cache.sleep()
    a.fault = "broken"
    assert await model_cache.wake_up() == ["a"]
    await use(model_cache, b)


async def test_a_replaced_model_sends_its_requests_on_and_is_gone_before_the_new_one_loads(
    memory: Memory, model_cache: ModelCache
) -> None:
    [old] = models(memory, model_cache, "a")
    await old.member.hold()
    old.retire()
    assert not await old.member.hold()
    [new] = models(memory, model_cache, "a")
    waiting = asyncio.create_task(use(model_cache, new))
    await turns()
    assert (new.loads, memory.most) == (0, 1)
    old.in_flight.remove()
    await old.unload()
    old.member.leave()
    await waiting
    assert (new.loads, memory.most) == (1, 1)


async def test_a_stop_answers_all_that_wait_and_ends_loads(memory: Memory, model_cache: ModelCache) -> None:
    [a] = models(memory, model_cache, "a")
    a.gate.clear()
    waiting = asyncio.create_task(use(model_cache, a))
    await turns()
    await model_cache.stop()
    with pytest.raises(Unavailable) as caught:
        await waiting
    assert (caught.value.code, memory.names) == ("shutting_down", [])
    with pytest.raises(Unavailable):
        await a.member.hold()


async def test_a_model_whose_load_ended_before_it_began_can_leave(memory: Memory, model_cache: ModelCache) -> None:
    [a] = models(memory, model_cache, "a")
    loading = asyncio.create_task(model_cache.load(a))
    await turns(1)
    await model_cache.stop()
    await asyncio.wait([loading])
    a.retire()
    a.member.leave()
    assert (a.phase, a.member.group) == (UNLOADED, None)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.slow
async def test_whatever_the_order_each_request_has_one_outcome(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Mixes requests, cancellations, failures, idle times, sleep and configuration changes, with limits and groups."""
    monkeypatch.setattr(cache_module, "RETRY_S", 0.002)
    chance, memory = random.Random(seed), Memory()
    limit = chance.choice([1, 2, 3])
    model_cache = ModelCache(limit)
    group_of = {name: chance.choice(["", "g", "h"]) for name in "abcdef"}
    served: dict[str, FakeModel] = {}

    def install(name: str) -> None:
        served[name] = FakeModel(name, memory)
        model_cache.add(served[name], group_of[name], idle_timeout_s=chance.choice([0.0, 0.003]))

    for name in group_of:
        install(name)
    outcomes: Counter[str] = Counter()
    groups_seen = asked = 0

    async def request() -> None:
        name = chance.choice("abcdef")
        try:
            while not await (model := served[name]).member.hold():
                await asyncio.sleep(0)
        except asyncio.CancelledError:
            outcomes["cancelled"] += 1
            raise
        except RequestError as error:
            outcomes[str(error.code)] += 1
            return
        try:
            for _ in range(chance.randrange(6)):
                assert model.loaded
                await asyncio.sleep(chance.choice([0, 0, 0.001]))
            outcomes["served"] += 1
        except asyncio.CancelledError:
            outcomes["cancelled"] += 1
            raise
        finally:
            model.in_flight.remove()

    async def replace(name: str) -> None:
        old = served[name]
        old.retire()
        install(name)
        await old.in_flight.drained()
        if (task := old.member.change) is not None:
            await asyncio.wait([task])
        if old.loaded:
            await old.unload()
        old.member.leave()

    tasks: list[asyncio.Task[None]] = []
    for _ in range(400):
        match chance.randrange(40):
            case 0:
                chance.choice(list(served.values())).fault = chance.choice(["", "", "broken"])
            case 1:
                tasks.append(asyncio.create_task(replace(chance.choice("abcdef"))))
            case 2:
                asleep = asyncio.create_task(model_cache.sleep(keeps=chance.random() < 0.3))
                await asyncio.sleep(0.002)
                await model_cache.wake_up()
                await asleep
            case _:
                one = asyncio.create_task(request())
                await asyncio.sleep(0)  # a task that is cancelled before it runs has no outcome
                asked += 1
                tasks.append(one)
                if chance.random() < 0.15:
                    asyncio.get_running_loop().call_later(chance.choice([0, 0.001]), one.cancel)
        in_memory = {group_of[one.name] or one.name for one in memory.models}
        groups_seen = max(groups_seen, len(in_memory))
        if chance.random() < 0.3:
            await asyncio.sleep(chance.choice([0, 0.0005]))
    results = await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 500)
    assert all(one is None or isinstance(one, asyncio.CancelledError) for one in results)
    assert groups_seen <= limit
    assert sum(outcomes.values()) == asked
    assert outcomes["served"] > 0
    assert set(outcomes) <= {"served", "cancelled", "model_not_loaded", "sleeping"}
    assert not any(one.in_flight for one in served.values())
    await model_cache.stop()


async def test_a_model_is_unloaded_by_hand_after_its_requests_and_loaded_by_the_next(memory: Memory) -> None:
    model_cache = ModelCache()
    [one, other] = models(memory, model_cache, "ab")
    for model in (one, other):
        assert await model.member.hold()
    other.in_flight.remove()
    unloading = asyncio.create_task(one.member.unload())
    await turns()
    assert not unloading.done()
    waiting = asyncio.create_task(one.member.hold())  # arrived later
    await turns()
    assert not waiting.done()
    one.in_flight.remove()
    await unloading
    assert await waiting
    assert (one.loads, other.loads, other.loaded) == (2, 1, True)
    one.in_flight.remove()
    await one.member.unload()
    await one.member.unload()
    assert memory.names == ["b"]
    await model_cache.stop()


async def test_an_unloading_that_is_given_up_leaves_the_model(memory: Memory, model_cache: ModelCache) -> None:
    [one] = models(memory, model_cache, "a")
    assert await one.member.hold()
    unloading = asyncio.create_task(one.member.unload())
    await turns()
    unloading.cancel()
    await asyncio.gather(unloading, return_exceptions=True)
    assert await one.member.hold()
    for _ in range(2):
        one.in_flight.remove()
    await turns()
    assert (one.loaded, one.loads) == (True, 1)


async def test_nothing_is_unloaded_by_hand_while_all_sleep(memory: Memory, model_cache: ModelCache) -> None:
    [one] = models(memory, model_cache, "a")
    await model_cache.sleep(keeps=True)
    with pytest.raises(Unavailable, match="asleep"):
        await one.member.unload()


@pytest.mark.parametrize(("seconds", "stays"), [(0.0, False), (0.001, False), (-1.0, True), (60.0, True), (None, True)])
async def test_a_request_says_how_long_its_model_stays(memory: Memory, seconds: float | None, stays: bool) -> None:
    model_cache = ModelCache()
    [one] = models(memory, model_cache, "a")
    assert one.member.keep(seconds)
    assert await one.member.hold()
    await turns()
    assert one.loaded
    one.in_flight.remove()
    if stays:
        await asyncio.sleep(0.01)
        assert one.loaded
    else:
        await until(lambda: not one.loaded)
    assert one.member.keep(None)
    assert await one.member.hold()
    one.in_flight.remove()
    await model_cache.stop()


async def test_a_configured_idle_time_is_overruled(memory: Memory, model_cache: ModelCache) -> None:
    one, fixed = FakeModel("a", memory), FakeModel("b", memory)
    model_cache.add(one, idle_timeout_s=0.001)
    model_cache.add(fixed, permanent=True)
    assert one.member.keep(-1.0)
    assert not fixed.member.keep(0.0)
    assert await one.member.hold()
    one.in_flight.remove()
    await asyncio.sleep(0.01)
    assert one.loaded
    one.member.keep(None)
    assert await one.member.hold()
    one.in_flight.remove()
    await until(lambda: not one.loaded)


def test_a_time_that_has_come_is_no_error_with_uvloop() -> None:
    uvloop = pytest.importorskip("uvloop")  # for such a time it returns a handle that does not know it

    async def pump() -> None:
        cache = ModelCache(1)
        for seconds in (-1.0, 60.0, 0.0, 30.0):
            cache._pump_at(now() + seconds)
        await cache.stop()

    loop = uvloop.new_event_loop()
    try:
        loop.run_until_complete(pump())
    finally:
        loop.close()
