"""A budget that requests share: order, limits, cancellations."""

from __future__ import annotations

import asyncio

import pytest

from lean_ovms.errors import Unavailable
from lean_ovms.util import budget as budgets
from lean_ovms.util.budget import Budget


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
