"""Waiters that share something: whoever leaves at any time, nothing is lost, no other fails, and the order stays."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from lean_ovms.errors import Unavailable
from lean_ovms.transports.cycle import ResponseWriter
from lean_ovms.types.push import Sink
from lean_ovms.util import concurrency as budgets
from lean_ovms.util.concurrency import Budget, Lease, share

MOST = 4
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("ask"), st.integers(1, MOST), st.sampled_from(["alice", "bob", "carol"])),
        st.tuples(st.just("cancel"), st.integers(0, 40), st.just("")),
        st.tuples(st.just("release"), st.integers(0, 40), st.just("")),
        st.tuples(st.just("turn"), st.just(0), st.just("")),
    ),
    max_size=40,
)
Steps = list[tuple[str, int, str]]


LEAVE = [("cancel", number, "") for number in range(2, 8)]
FLOOD = [*[("ask", 2, "alice")] * 2, ("turn", 0, ""), *[("ask", 2, "alice")] * 6, ("turn", 0, ""), *LEAVE]
"""All waiters leave in the iteration in which something is returned."""


class Shared:
    """A resource of which amounts can be taken. `order` has the numbers of those that got some, `asked` the requests by
    client."""

    def __init__(self, acquire: Callable[[int, str], Awaitable[Callable[[], None]]]) -> None:
        self.acquire = acquire
        self.tasks: list[asyncio.Task[None]] = []
        self.held: list[Callable[[], None]] = []
        self.order: dict[str, list[int]] = {"": []}

    async def play(self, steps: Steps) -> None:
        """Asks, cancels and returns as the steps say, with iterations of the loop only where they say so; then
        returns everything."""
        for kind, value, client in steps:
            if kind == "ask":
                self.tasks.append(asyncio.ensure_future(self.take(len(self.tasks), value, client)))
            elif kind == "cancel" and self.tasks:
                self.tasks[value % len(self.tasks)].cancel()
            elif kind == "release" and self.held:
                self.held.pop(value % len(self.held))()
            elif kind == "turn":
                await asyncio.sleep(0)
        while not all(task.done() for task in self.tasks):
            while self.held:
                self.held.pop()()
            await asyncio.sleep(0)
        while self.held:
            self.held.pop()()
        for task in self.tasks:
            assert task.cancelled() or task.exception() is None

    async def take(self, number: int, amount: int, client: str) -> None:
        self.held.append(await self.acquire(amount, client))
        self.order.setdefault(client, []).append(number)
        self.order[""].append(number)


@given(steps=STEPS, most=st.integers(1, MOST), limited=st.booleans())
@example(steps=[*FLOOD, ("release", 0, "")], most=share(MOST), limited=True)
@example(steps=[*[("ask", 1, "bob")] * 2, *FLOOD, *[("release", 0, "")] * 4], most=MOST, limited=False)
@settings(max_examples=40, deadline=None)
def test_no_amount_of_a_budget_is_lost(steps: Steps, most: int, limited: bool) -> None:
    async def run() -> None:
        budget = Budget(MOST, 1000 if limited else None, "no", "full", most_of_client=most)
        held = Counter[str]()

        async def acquire(amount: int, client: str) -> Callable[[], None]:
            lease = await budget.acquire(amount, client)
            held[client] += amount
            assert budget.used <= MOST
            assert held[client] <= max(amount, most)
            return lambda: release(lease, amount, client)

        def release(lease: Lease, amount: int, client: str) -> None:
            held[client] -= amount
            lease.release()

        shared = Shared(acquire)
        await shared.play(steps)
        assert (budget.used, budget.waiting, budget.at_share("alice")) == (0, 0, False)
        await asyncio.gather(*(budget.acquire(1, "alice") for _ in range(most)))
        assert (budget.used, budget.at_share("alice")) == (most, True)
        del shared.order[""]
        assert all(numbers == sorted(numbers) for numbers in shared.order.values())

    asyncio.run(run())


async def test_the_clients_that_wait_for_a_slot_take_turns() -> None:
    slots, order = Budget(1, most_of_client=1), list[str]()

    async def work(client: str) -> None:
        with await slots.acquire(1, client):
            order.append(client)
            await asyncio.sleep(0)

    await asyncio.gather(*(work("alice") for _ in range(4)), *(work(client) for client in ("bob", "carol", "bob")))
    assert order == ["alice", "alice", "bob", "carol", "alice", "bob", "alice"]


class FullTransport(asyncio.Transport):
    """Sends nothing."""

    def get_write_buffer_size(self) -> int:
        return 1


@pytest.mark.parametrize("waits_in", ["sink", "writer"])
async def test_who_leaves_while_the_client_does_not_read_cancels_nobody_else(waits_in: str) -> None:
    writer = ResponseWriter(asyncio.get_running_loop(), FullTransport())
    writer.pause()
    sink: Sink[int] = Sink(lambda _: None, lambda: writer.paused)

    async def wait() -> None:
        await (writer.drain() if waits_in == "writer" else sink.send(1))

    leaving, staying = asyncio.ensure_future(wait()), asyncio.ensure_future(wait())
    await asyncio.sleep(0)
    leaving.cancel()
    await asyncio.wait([leaving])
    assert leaving.cancelled()
    later = asyncio.ensure_future(wait())
    await asyncio.sleep(0)
    assert not staying.done()
    assert not later.done()
    writer.resume()
    await asyncio.gather(staying, later)


async def turns() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_who_does_not_fit_waits_in_order() -> None:
    idle: list[int] = []
    budget = Budget(10, 100, "no", "full", lambda: idle.append(budget.used))
    first, second = await budget.acquire(6), await budget.acquire(4)
    large, small = asyncio.ensure_future(budget.acquire(8)), asyncio.ensure_future(budget.acquire(1))
    await turns()
    assert (budget.used, budget.waiting, large.done(), small.done()) == (10, 9, False, False)
    second.release()
    second.release()
    await turns()
    assert (budget.used, small.done()) == (6, False)  # it would fit, but the large one comes first
    first.shrink(2)
    await turns()
    assert (budget.used, large.done(), small.done()) == (10, True, False)
    first.release()
    (await large).release()
    (await small).release()
    assert (budget.used, budget.waiting, idle) == (0, 0, [0])


async def test_a_client_leaves_the_rest_of_a_budget_to_others() -> None:
    budget = Budget(8, 8, "no", "full")
    alices = [asyncio.ensure_future(budget.acquire(2, "alice")) for _ in range(7)]
    await turns()
    assert ([task.done() for task in alices], budget.used, budget.waiting) == ([True] * 3 + [False] * 3 + [True], 6, 6)
    assert isinstance(alices[6].exception(), Unavailable)  # her requests that wait are limited, too
    bob = await budget.acquire(2, "bob")
    bobs = asyncio.ensure_future(budget.acquire(2, "bob"))
    await turns()
    for _ in range(2):
        (await alices.pop(0)).release()
    await turns()
    assert ([task.done() for task in alices[1:3]], bobs.done()) == ([True, False], True), "they take turns"
    bob.release()
    for task in (*alices[:-1], bobs):
        (await task).release()
    assert (budget.used, budget.waiting) == (0, 0)


async def test_more_than_there_is_gets_everything() -> None:
    budget = Budget(10, 0, "no", "full")
    lease = await budget.acquire(1000)
    assert budget.used == 10
    lease.release()
    assert budget.used == 0


async def test_few_wait_and_not_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budgets, "MAX_WAIT_S", 0.05)
    budget = Budget(10, 10, "too many", "full")
    lease = await budget.acquire(10)
    waiting = asyncio.ensure_future(budget.acquire(10))
    await turns()
    with pytest.raises(Unavailable, match="too many") as refused:
        await budget.acquire(1)
    assert not waiting.done(), "it was refused at once"
    assert refused.value.code == "full"
    assert refused.value.headers() == [("Retry-After", "2")]
    with pytest.raises(Unavailable):
        await waiting
    assert (budget.used, budget.waiting) == (10, 0)
    lease.release()
    assert budget.used == 0


@pytest.mark.parametrize("granted", [False, True])
async def test_who_leaves_takes_nothing_along(granted: bool) -> None:
    budget = Budget(10, 100, "no", "full")
    lease = await budget.acquire(10)
    leaving, next_one = asyncio.ensure_future(budget.acquire(10)), asyncio.ensure_future(budget.acquire(3))
    await turns()
    if granted:
        lease.release()  # granted and cancelled in the same iteration
    leaving.cancel()
    await turns()
    lease.release()
    await turns()
    assert leaving.cancelled()
    (await next_one).release()
    assert (budget.used, budget.waiting) == (0, 0)
