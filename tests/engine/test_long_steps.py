"""While a long step is computed, the engine's loop handles commands as between two steps."""

import threading

import pytest

from lean_ovms.engine.generation import task as generation
from lean_ovms.engine.paged import step_runner
from lean_ovms.engine.protocol import Accepted, Decode, Decoded, Encode, Encoded, Ping, Pong, Prefilled, Tokens
from tests.engine.rig import LIMITS, Rig, queue_limits

FREE = {"ignore_eos": True}


class LongSteps(Rig):
    """A rig whose steps end when `finish` is called."""

    def __init__(self, limits=LIMITS, **changes):
        super().__init__(limits=limits, meanwhile=True, context=10**6, **changes)
        self.end = threading.Semaphore(0)
        self.network_wait = self.backend.network.wait
        self.backend.network.wait = self._wait_for_the_end

    def _wait_for_the_end(self):
        assert self.end.acquire(timeout=300)
        return self.network_wait()

    def begin(self, **asked):
        """Submits a request, and starts its first step, which is not over yet."""
        number = self.submit("hello", **{"max_tokens": 3, **FREE, **asked})
        self.turn()
        assert self.task.computing
        return number

    def finish(self, steps=1):
        """Ends the running step and further ones, and sends their records."""
        for _ in range(steps):
            if not self.backend.started:
                self.turn()
            self.end.release()
            while self.backend.started:
                self.turn()


@pytest.fixture(autouse=True)
def each_step_is_long(monkeypatch):
    monkeypatch.setattr(step_runner, "SHORT_S", -1)


@pytest.fixture
def rig():
    made = LongSteps()
    yield made
    made.end.release(1000)  # leaves no thread waiting
    made.run()
    assert made.stats().running == made.stats().queued == made.stats().kv_blocks_used == 0


def test_what_needs_no_step_is_answered_while_one_is_computed(rig):
    rig.begin()
    rig.put(Encode(11, ["hi"], False), Decode(12, [104, 105], True), Ping(13))
    late, wrong = rig.submit("a new chat", max_tokens=1, **FREE), rig.submit([10**6], max_tokens=1)
    encoded, decoded, pong, accepted, refused = rig.turn()
    assert (encoded, decoded) == (Encoded(11, [[104, 105]]), Decoded(12, "hi"))
    assert (pong.id, pong.stats["running"]) == (13, 1)
    assert accepted == Accepted(late, len("a new chat"))
    assert (refused.id, refused.error[1]) == (wrong, "prompt: 1000000 is not a token id in [0, 266)")
    assert rig.task.computing
    rig.finish()
    assert not rig.answer(late).tokens
    rig.finish()  # it takes part in the next step
    assert len(rig.answer(late).tokens[0]) == 1


def test_a_turn_waits_for_the_end_of_a_step_and_computes_the_next(rig):
    number = rig.begin()
    for made in (1, 2, 3):
        rig.finish()
        assert len(rig.answer(number).tokens[0]) == made
    assert rig.answer(number).reasons == {0: "length"}


def test_a_request_that_is_cancelled_while_its_step_is_computed_gets_nothing_of_it(rig):
    gone, kept = rig.submit("gone", max_tokens=9, **FREE), rig.begin(max_tokens=9)
    rig.cancel(gone)
    rig.turn()
    assert rig.stats().running == 2  # its blocks are in use
    rig.finish()
    assert not rig.answer(gone).tokens
    assert len(rig.answer(kept).tokens[0]) == 1
    assert rig.stats().running == 1


def test_a_step_that_fails_in_its_thread_is_computed_again(rig):
    number = rig.begin()
    rig.finish()
    wait, rig.network_wait = rig.network_wait, lambda: (_ for _ in ()).throw(RuntimeError("the network failed"))
    rig.finish()
    assert len(rig.answer(number).tokens[0]) == 1
    rig.network_wait = wait
    rig.finish(2)
    assert rig.answer(number).reasons == {0: "length"}
    assert rig.stats().recoveries == 1


def test_beside_a_step_no_more_is_tokenized_than_between_two(rig):
    def encoded():
        return [record.id for record in rig.sent() if isinstance(record, Encoded)]

    rig.begin()
    text = "x" * (generation.TURN_CHARACTERS // 4)
    rig.put(*[Encode(number, [text], False, client="a flood") for number in range(100, 110)])
    rig.turn()
    rig.put(Encode(200, ["hi"], False, client="another"))
    assert encoded() == [100, 101, 102, 103]
    rig.finish()
    assert encoded() == [100, 101, 102, 103]
    rig.turn(2)  # the first starts a step
    assert encoded()[4:] == [104, 200, 105, 106, 107]  # clients take turns


def test_requests_beyond_the_queue_wait_for_the_step_that_lets_others_start():
    """They would otherwise be refused although the engine has places for them."""
    rig = LongSteps(queue_limits(2), running=4)
    rig.begin()
    rig.end.release(100)
    *accepted, refused = [rig.submit("more", max_tokens=1, **FREE) for _ in range(6)]
    rig.turn(2)  # the first may only end the step
    assert all(rig.answer(number).accepted for number in accepted)  # three run, and two wait
    assert "please try again later" in rig.answer(refused).refused[1]
    rig.run()


def test_commands_wait_for_a_step_that_hangs(rig, monkeypatch):
    """Otherwise the answers would hide the hang from the front end's watchdog."""
    rig.begin()
    monkeypatch.setattr(step_runner, "OVERDUE_S", 0)
    assert not rig.task.computing
    monkeypatch.setattr(rig.transport, "receive", lambda wait: [] if not wait else pytest.fail("it waits for commands"))
    rig.end.release()
    told = rig.turn()  # waits inside the step
    assert [type(record) for record in told] == [Prefilled, Tokens]


def test_a_command_that_ends_the_wait_for_a_hanging_step_waits_for_it_too(rig, monkeypatch):
    """The front end's watchdog sends a Ping after half of its limit, whose answer would prolong the hang by that."""

    def late(wait):
        assert wait
        monkeypatch.setattr(step_runner, "OVERDUE_S", 0)
        return [Ping(13)]

    rig.begin()
    rig.end.release()
    with monkeypatch.context() as patch:
        patch.setattr(rig.transport, "receive", late)
        assert [type(record) for record in rig.turn()] == [Prefilled, Tokens]
    assert [type(record) for record in rig.turn()] == [Pong]


def test_commands_wait_for_short_steps(monkeypatch):
    monkeypatch.setattr(step_runner, "SHORT_S", 1000)
    rig = Rig(meanwhile=True)
    monkeypatch.setattr(rig.backend.runner, "start", lambda wake: pytest.fail("a step is only started"))
    assert rig.ask("hello", max_tokens=3, **FREE).reasons == {0: "length"}
