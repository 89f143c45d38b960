"""Several engines as one: which of them computes a request, and which calls go to all."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest

from lean_ovms.engine.client.replies import ReplyStream
from lean_ovms.errors import BadRequest, TooManyRequests, Unavailable
from lean_ovms.features.replicas import prefix_router
from lean_ovms.features.replicas.pool import EnginePool
from lean_ovms.features.replicas.prefix_router import (
    BLOCK,
    BLOCK_IDS,
    LEAST_SHARE,
    MAX_BLOCKS,
    MOST_AHEAD,
    PrefixRouter,
    prefixes,
)
from lean_ovms.types import Image, SamplingParams
from lean_ovms.types.engine import EngineRequest, EngineStats
from tests.fakes import INFO, FakeEngine, say
from tests.streams import pieces

GAUGE = "bytes"
"""A metric of something that the engines share."""


class Replica(FakeEngine):
    """An engine in this process that starts nothing by itself: its requests stay until they are cancelled."""

    def __init__(self) -> None:
        super().__init__([])
        self.full = False
        self.counts = EngineStats(running=0, queued=0, steps=0)
        self.calls: list[Any] = []

    @property
    def in_flight(self) -> int:
        return len(self.mail)

    async def stats(self) -> EngineStats:
        if self.state != "ready":
            raise self.unavailable()
        return self.counts

    async def call(self, make: Any, on_partial: Any = None) -> Any:
        if self.full:
            raise TooManyRequests("full")
        self.calls.append(make(1))
        return len(self.calls)

    def unavailable(self) -> Unavailable:
        return Unavailable(self.state, retry_after_s=7 if self.state == "failed" else 3)

    def die(self) -> None:
        self.state = "restarting"

    def restart(self) -> None:
        self.state, self.restarts = "ready", self.restarts + 1


class Pool(EnginePool):
    """A pool with replicas in this process."""

    def __init__(self, count: int) -> None:
        self.fakes = [Replica() for _ in range(count)]
        super().__init__(self.fakes, {GAUGE})  # type: ignore[arg-type]

    async def ask(self, prompt: str, salt: str = "", **fields: Any) -> int:
        """Starts a request that does not end. Returns the number of its replica."""
        before = [len(one.submitted) for one in self.fakes]
        await self.submitted(prompt, salt, **fields)
        [found] = [number for number, one in enumerate(self.fakes) if len(one.submitted) > before[number]]
        return found

    async def submitted(self, prompt: str, salt: str = "", **fields: Any) -> ReplyStream:
        sampling = SamplingParams(max_tokens=5, cache_salt=salt)
        return await self.submit(EngineRequest(prompt=prompt, sampling=sampling, add_special_tokens=True, **fields))


@pytest.fixture
async def pool() -> Pool:
    pool = Pool(2)
    await pool.start()
    return pool


def text(*blocks: str) -> str:
    return "".join(block * BLOCK for block in blocks)


async def test_a_conversation_stays_where_it_began_and_others_go_to_who_has_less_to_do(pool: Pool) -> None:
    assert [await pool.ask(text(one)) for one in "abcd"] == [0, 1, 0, 1]
    assert [await pool.ask(text(one, "x")) for one in "dcba"] == [1, 0, 1, 0]


async def test_what_makes_a_cache_differ_makes_a_conversation_differ(pool: Pool) -> None:
    assert await pool.ask(text("a")) == 0
    images = [Image(b"", 1, 1, digest=name) for name in ("1", "2")]
    assert await pool.ask(text("a"), salt="s") == 1
    assert await pool.ask(text("a"), adapter="x") == 0
    assert await pool.ask(text("a"), images=images[:1]) == 1
    assert await pool.ask(text("a"), images=images[:1]) == 1
    assert await pool.ask(text("a"), images=images[1:]) == 0


async def test_a_replica_that_is_too_far_ahead_passes_its_conversation_on(pool: Pool) -> None:
    found = [await pool.ask(text("a")) for _ in range(2 * MOST_AHEAD)]
    assert found == [0] * (MOST_AHEAD + 1) + [1] * (MOST_AHEAD - 1)


async def test_only_what_every_replica_refuses_is_refused(pool: Pool) -> None:
    pool.fakes[0].refusal = TooManyRequests("full")
    assert await pool.ask(text("a")) == 1
    pool.fakes[1].refusal = TooManyRequests("full, too")
    with pytest.raises(TooManyRequests):
        await pool.ask(text("a"))
    pool.fakes[0].refusal = pool.fakes[1].refusal = BadRequest("wrong")
    with pytest.raises(BadRequest):
        await pool.ask(text("a"))


async def test_while_one_restarts_the_others_serve_and_it_knows_nothing_afterwards(pool: Pool) -> None:
    assert await pool.ask(text("a")) == 0
    pool.fakes[0].die()
    assert (pool.state, pool.restarts) == ("ready", 0)
    assert await pool.ask(text("b")) == 1
    pool.fakes[0].restart()
    assert pool.restarts == 1
    for _ in range(3):
        await pool.ask(text("a"))
    assert [len(one.submitted) for one in pool.fakes] == [4, 1]
    pool.fakes[0].die()
    pool.fakes[1].die()
    assert pool.state == "restarting"
    with pytest.raises(Unavailable, match="restarting"):
        await pool.ask(text("a"))
    with pytest.raises(Unavailable):
        await pool.stats()


async def test_its_state_is_that_of_the_best_once_all_are_loaded() -> None:
    pool = Pool(2)
    assert pool.state == "loading"
    pool.fakes[0].state = "ready"
    assert pool.state == "loading"
    await pool.start()
    assert pool.state == "ready"
    pool.fakes[0].state = pool.fakes[1].state = "failed"
    assert (pool.state, pool.unavailable().retry_after_s) == ("failed", 7)
    pool.fakes[1].state = "restarting"
    assert (pool.state, pool.unavailable().retry_after_s) == ("restarting", 3)
    await pool.stop()
    assert pool.state == "stopped"


async def test_a_request_may_need_what_the_smallest_cache_has(pool: Pool) -> None:
    pool.fakes[1].info = replace(INFO, kv_blocks=INFO.kv_blocks - 1)
    assert pool.info is pool.fakes[1].info
    assert pool.vocabulary is pool.fakes[0].vocabulary


async def test_what_changes_a_cache_is_asked_of_each(pool: Pool) -> None:
    assert await pool.call_each(str) == [1, 1]
    assert await pool.call(str) == 2
    assert [len(one.calls) for one in pool.fakes] == [2, 1]
    pool.fakes[0].die()
    assert await pool.call_each(str) == [2]


async def test_a_call_that_one_refuses_is_passed_on(pool: Pool) -> None:
    pool.fakes[0].full = True
    assert await pool.call(str) == 1
    assert [len(one.calls) for one in pool.fakes] == [0, 1]
    pool.fakes[1].full = True
    with pytest.raises(TooManyRequests):
        await pool.call(str)


async def test_one_of_them_can_be_asked(pool: Pool) -> None:
    with pool.only(1):
        assert [await pool.ask(text("a")) for _ in range(2)] == [1, 1]
        pool.fakes[1].die()
        with pytest.raises(Unavailable):
            await pool.ask(text("a"))
    assert await pool.ask(text("a")) == 0


async def test_the_answer_is_that_of_the_replica(pool: Pool) -> None:
    pool.fakes[0].script = lambda prompt, sampling: say("ab")
    reply = await pool.submitted("hi")
    assert [record.tokens for found in [one async for one in pieces(reply)] for record in found] == [[97, 98, 256]]
    assert await pool.decode([97], False) == "a"
    assert await pool.encode(["a"], False) == [[97]]


async def test_counts_are_sums_that_only_grow(pool: Pool) -> None:
    counts = EngineStats(
        running=1, queued=2, steps=10, kv_blocks_used=3, kv_blocks_total=8, drafted=4, accepted_by_position=[2, 1],
        of_features={GAUGE: 5, "read": 6},
    )  # fmt: skip
    pool.fakes[0].counts = counts
    pool.fakes[1].counts = replace(counts, drafted=None, accepted_by_position=[1])
    found = await pool.stats()
    assert (found.running, found.queued, found.steps, found.kv_blocks_total) == (2, 4, 20, 16)
    assert (found.drafted, found.accepted_by_position) == (4, [3, 1])
    assert found.of_features == {GAUGE: 5, "read": 12}

    pool.fakes[0].die()
    found = await pool.stats()
    assert (found.running, found.queued, found.steps, found.kv_blocks_total) == (1, 2, 20, 8)
    assert found.of_features == {GAUGE: 5, "read": 12}
    assert pool.latest == [None, pool.fakes[1].counts]

    pool.fakes[0].restart()
    pool.fakes[0].counts = replace(counts, steps=1)
    assert [(await pool.stats()).steps for _ in range(2)] == [21, 21]
    pool.fakes[0].restart()  # nothing was sent while it was gone
    pool.fakes[0].counts = replace(counts, steps=3)
    assert [(await pool.stats()).steps for _ in range(2)] == [24, 24]


IDLE = {"a": 0, "b": 0, "c": 0}


def test_what_a_replica_says_to_know_counts_as_what_it_was_sent() -> None:
    router: PrefixRouter[str] = PrefixRouter(most_ahead=4)
    prompt = prefixes("m", text("s", "1", "2", "3"))
    router.record(prompt[:2], "a")
    assert router.choose(prompt, IDLE, {"a": 1, "b": 3, "c": 0}.__getitem__) == "b"
    assert router.choose(prompt, IDLE, {"a": 1, "b": 1, "c": 0}.__getitem__) == "a"


def test_new_prompts_go_to_the_least_loaded_and_then_to_the_emptiest() -> None:
    router: PrefixRouter[str] = PrefixRouter(most_ahead=4)
    chosen = []
    for letter in "uvwxyz":
        prompt = prefixes("m", text(letter))
        chosen.append(router.choose(prompt, IDLE))
        router.record(prompt, chosen[-1])
    assert chosen == ["a", "b", "c"] * 2
    assert router.choose(prefixes("m", "short"), {"a": 1, "b": 0.5, "c": 1}) == "b"


def test_namespaces_do_not_meet() -> None:
    for prompt in (text("s"), text("s").encode(), [7] * BLOCK_IDS):
        assert len(prefixes("m", prompt)) == 1
        assert prefixes(("m", "salt"), prompt) != prefixes("m", prompt)


def test_prompts_are_read_in_whole_blocks_and_not_to_any_length(monkeypatch: pytest.MonkeyPatch) -> None:
    for prompt in ("x" * (3 * BLOCK - 1), b"x" * (3 * BLOCK - 1), [1] * (3 * BLOCK_IDS - 1)):
        assert len(prefixes("m", prompt)) == 2
        assert prefixes("m", prompt)[0] == prefixes("m", prompt[: len(prompt) // 2])[0]
    assert MAX_BLOCKS > 3
    monkeypatch.setattr(prefix_router, "MAX_BLOCKS", 3)
    assert len(prefixes("m", "x" * (9 * BLOCK))) == 3


class Naive:
    """A simple router to compare with. It keeps each prefix as a text in a list."""

    def __init__(self, most_ahead: int, known: int) -> None:
        self.most_ahead, self.most = most_ahead, known
        self.seen: dict[str, list[str]] = {}

    def length(self, replica: str, prompt: str) -> int:
        known = (n for n in range(len(prompt) // BLOCK, 0, -1) if prompt[: n * BLOCK] in self.seen.get(replica, []))
        return next(known, 0)

    def choose(self, prompt: str, loads: dict[str, int]) -> set[str]:
        least = min(loads.values())
        near = [one for one in loads if loads[one] - least <= max(self.most_ahead, least / 4)]
        lengths = {one: self.length(one, prompt) for one in near}
        if (best := max(lengths.values())) >= len(prompt) // BLOCK * LEAST_SHARE:
            near = [one for one in near if lengths[one] == best]
        return {one for one in near if loads[one] == min(loads[other] for other in near)}

    def record(self, prompt: str, replica: str) -> None:
        seen = self.seen.setdefault(replica, [])
        for n in range(len(prompt) // BLOCK, 0, -1):
            prefix = prompt[: n * BLOCK]
            if prefix in seen:
                seen.remove(prefix)
            seen.append(prefix)
        del seen[: max(0, len(seen) - self.most)]


@pytest.mark.parametrize("seed", range(8))
def test_it_chooses_as_a_naive_one_does(seed: int) -> None:
    random_ = random.Random(seed)
    router: PrefixRouter[str] = PrefixRouter(most_ahead=2, known_blocks=12)
    naive = Naive(2, 12)
    for _ in range(150):
        prompt = text(*random_.choices("xy", k=random_.randint(0, 6))) + "z" * random_.randint(0, BLOCK - 1)
        hashes = prefixes("m", prompt)
        loads = {one: random_.randint(0, 16) for one in random_.sample("abcd", random_.randint(1, 4))}
        chosen = router.choose(hashes, loads)
        assert chosen in naive.choose(prompt, loads)
        router.record(hashes, chosen)
        naive.record(prompt, chosen)
        if random_.random() < 0.05:
            gone = random_.choice("abcd")
            router.remove(gone)
            naive.seen.pop(gone, None)
        for one in "abcd":
            assert router.known(one, hashes) == naive.length(one, prompt)
