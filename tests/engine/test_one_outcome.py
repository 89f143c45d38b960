"""Every submitted id gets exactly one final, whatever clients, engine and chance do."""

import asyncio
import contextlib
import os
import random
import signal
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lean_ovms.engine import protocol
from lean_ovms.engine.client.replies import ReplyRouter
from lean_ovms.errors import BadRequest, RequestError, Unavailable
from lean_ovms.types.push import StreamIterator
from tests.engine.client.harness import run_fast, running, submit, until
from tests.streams import Gate

PROMPTS = ["count 1", "count 9", "burst 20", "fail", "refuse", "mute", "hang", "die", "half", "garbage"]
WEIGHTS = [25, 25, 25, 8, 8, 4, 8, 1, 1, 1]


class Client:
    """Sends requests until it has sent enough and has seen all kinds of ends; counts how each of them ended."""

    def __init__(self, engine, rng, ends, ids):
        self.engine = engine
        self.rng = rng
        self.ends = ends
        self.ids = ids
        self.sent = 0

    async def run(self, requests, ends_to_see):
        """Continues until all kinds of ends were seen, because on a slow machine the first requests may only find a
        starting engine."""
        while requests > 0 or not self.ends.keys() >= ends_to_see:
            requests -= 1
            self.sent += 1
            prompt = self.rng.choices(PROMPTS, WEIGHTS)[0]
            try:
                reply = await asyncio.wait_for(self.submit(prompt), self.rng.choice([5, 200, 600]))
            except (RequestError, asyncio.TimeoutError) as error:
                self.ends[type(error).__name__] += 1
                if getattr(error, "retry_after_s", None):
                    await asyncio.sleep(self.rng.random() * error.retry_after_s)
                continue
            assert reply.id not in self.ids
            self.ids.add(reply.id)
            self.ends[await self.follow(reply)] += 1
            reply.cancel()
            assert reply.finished

    def submit(self, prompt):
        return submit(self.engine, prompt, n=self.rng.choice([1, 1, 3]), seeds=(1, 2, 3))

    async def follow(self, reply):
        """Reads to the end, or gives up at some point. A reader that waits forever fails the test by a timeout."""
        async with contextlib.aclosing(StreamIterator(reply)) as found:
            return await self.read(reply, found)

    async def read(self, reply, pieces):
        patience = self.rng.choice([0, 1, 3, 99, 99, 99])
        finals = Counter()
        for _ in range(patience):
            try:
                found = await asyncio.wait_for(anext(pieces), 50)
            except RequestError as error:
                with pytest.raises(type(error)):
                    await anext(pieces)  # the end stays the end
                return type(error).__name__
            except asyncio.TimeoutError:
                return "given up"
            except StopAsyncIteration:
                return "finished"
            for record in found:
                assert finals[record.index] == 0, "something after the final"
                finals[record.index] += record.reason is not None
            if self.rng.random() < 0.1:
                index = self.rng.choice([None, 0, 1, 2])
                reply.cancel(index)
                gone = finals if index is None else [index]
                finals.update({i: 1 for i in gone if finals[i] == 0})
        return "given up"


async def killer(engine, rng, times):
    for _ in range(times):
        await asyncio.sleep(rng.random() * 60)
        if engine.pid and engine.state == "ready":
            os.kill(engine.pid, rng.choice([signal.SIGKILL, signal.SIGTERM, signal.SIGSTOP]))


async def outlived(engine):
    """Returns an answer of the last engine process. What was sent last may still kill the previous one."""
    while True:
        await until(lambda: engine.state == "ready")
        with contextlib.suppress(Unavailable):
            return await engine.encode(["still here"], True)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
def test_every_request_ends_exactly_once_whatever_happens(seed):
    async def main():
        rng = random.Random(seed)
        ends, ids = Counter(), set()
        async with running(engine_watchdog_s=60.0) as engine:
            clients = [Client(engine, random.Random(rng.random()), ends, ids) for _ in range(12)]
            work = [client.run(15, {"finished", "Unavailable"}) for client in clients]
            await asyncio.wait_for(asyncio.gather(killer(engine, rng, 4), *work), 120 * 100)
            assert not engine.busy
            assert await outlived(engine) == [[10]]
        assert sum(ends.values()) == sum(client.sent for client in clients) >= 12 * 15
        assert set(ends) <= {"finished", "given up", "Unavailable", "EngineFailure", "BadRequest", "TimeoutError"}

    run_fast(main, 100.0)


numbers = st.integers(1, 4)
indexes = st.integers(0, 2)
steps = st.one_of(
    st.tuples(st.just("open"), st.integers(1, 3)),
    st.tuples(st.just("tokens"), numbers, indexes, st.integers(0, 3), st.sampled_from([None, None, "stop", "length"])),
    st.tuples(st.just("failed"), numbers),
    st.tuples(st.just("cancel"), numbers, st.none() | indexes),
    st.tuples(st.just("read"), numbers),
    st.tuples(st.just("lost")),
)


class Model:
    """A simple model of what the reader of one reply must get."""

    def __init__(self, sequences):
        self.open = set(range(sequences))
        self.due = {i: [] for i in self.open}  # (tokens, reason) that were not read yet
        self.failed = False

    def tokens(self, index, tokens, reason):
        if index in self.open:
            self.due[index].append((tokens, reason))
            if reason:
                self.open.remove(index)

    def cancel(self, indexes):
        for index in indexes & self.due.keys():
            self.due[index] = []
        self.open -= indexes

    def fail(self):
        self.failed = self.failed or bool(self.open)
        self.open.clear()

    def look(self):
        """Returns what an open sink gets, and what happens then: None, "end" or "error"."""
        found = {
            index: ([token for tokens, _ in parts for token in tokens], parts[-1][1])
            for index, parts in self.due.items()
            if parts
        }
        self.due = {index: [] for index in self.due}
        return found, None if self.open else "error" if self.failed else "end"


async def look(gate):
    """Opens the sink for a moment. Returns what it gets, and whether that was all."""
    gate.open()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    gate.shut()
    found = [t for piece in gate.take() for t in piece]
    assert len({t.index for t in found}) == len(found)
    end = None if not gate.task.done() else "end" if gate.task.exception() is None else "error"
    return {t.index: (t.tokens, t.reason) for t in found}, end


@pytest.mark.slow
@given(st.lists(steps, max_size=40))
def test_a_mailbox_gives_what_came_once_and_one_end(script):
    asyncio.run(play(script))


async def play(script):
    sent = []
    router = ReplyRouter(sent.append)
    replies, gates, models = {}, {}, {}
    serial = 0
    for verb, *args in script:
        if verb == "open":
            reply = router.open(args[0])
            replies[reply.id], models[reply.id] = reply, Model(args[0])
            gates[reply.id] = Gate(reply, is_open=False)
        elif verb == "lost":
            router.fail_all(lambda: Unavailable("gone"))
            for model in models.values():
                model.fail()
        elif args[0] not in replies:
            router.deliver([protocol.Tokens(args[0], 0, [1], None, None)])
        elif verb == "tokens":
            number, index, count, reason = args
            serial += count
            tokens = list(range(serial - count, serial))
            router.deliver([protocol.Tokens(number, index, list(tokens), None, reason)])
            models[number].tokens(index, tokens, reason)
        elif verb == "failed":
            router.deliver([protocol.Failed(args[0], BadRequest("x").to_wire())])
            models[args[0]].fail()
        elif verb == "cancel":
            number, index = args
            replies[number].cancel(index)
            models[number].cancel({0, 1, 2} if index is None else {index})
        elif verb == "read":
            assert await look(gates[args[0]]) == models[args[0]].look()
    for number, reply in replies.items():
        assert await look(gates[number]) == models[number].look()
        assert reply.finished == (not models[number].open)
        gates[number].task.cancel()
    assert router.busy == any(model.open for model in models.values())
