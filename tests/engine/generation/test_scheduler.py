"""Scheduling: the cache never overflows, preempted sequences resume, and a step that fails harms one request."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lean_ovms.engine.protocol import Failed, Tokens
from lean_ovms.errors import last_line
from tests.engine.rig import Rig, queue_limits


def run_watching(rig, most=5000):
    """Runs to the end, and checks that there are never more blocks in use than exist."""
    for _ in range(most):
        if rig.backend.idle and not rig.transport.inbox:
            return
        rig.turn()
        assert rig.stats().kv_blocks_used <= rig.stats().kv_blocks_total
    raise AssertionError("still at work")


# --- KV budget


def test_a_request_is_booked_with_what_it_holds_now_and_not_with_what_it_may_become():
    rig = Rig(blocks=100)
    rig.submit([1] * 40, max_tokens=2000)
    rig.turn()
    assert rig.stats().kv_blocks_used == 2


def test_a_long_prompt_is_not_overtaken_for_ever_by_short_ones():
    rig = Rig(blocks=10)
    rig.submit("ab" * 80, ignore_eos=True, max_tokens=60)
    rig.turn(2)
    long = rig.submit("cd" * 100)
    short = rig.submit("ef")
    rig.turn(3)
    assert rig.answer(short).tokens == {}
    run_watching(rig)
    first = next(r for f in rig.transport.frames for r in f if isinstance(r, Tokens) and r.id in (long, short))
    assert first.id == long


PREFIX = "the same beginning of more than thirty-two characters, "


def test_nobody_waits_without_prefix_caching():
    rig = Rig(prefix_caching=False, step_tokens=256)
    for x in "abc":
        rig.submit(PREFIX + x)
    rig.turn()
    assert rig.stats().running == 3


def test_nobody_waits_for_a_beginning_that_is_computed_already():
    rig = Rig(prefix_caching=True, step_tokens=64)
    rig.ask(PREFIX)
    for x in "abc":
        rig.submit(PREFIX + x)
    rig.turn()
    assert rig.stats().running == 3


@pytest.mark.parametrize(("caching", "turns"), [(True, 0), (True, 9), (False, 2)])
def test_other_prompts_are_out_at_once_when_they_are_cancelled(caching, turns):
    rig = Rig(prefix_caching=caching, step_tokens=16)
    request = rig.submit(PREFIX)
    rig.turn(turns)
    rig.cancel(request)
    rig.turn()
    assert (rig.stats().running, rig.stats().queued, rig.stats().kv_blocks_used) == (0, 0, 0)


@pytest.mark.slow
@settings(max_examples=30, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    blocks=st.integers(6, 40),
    step_tokens=st.integers(5, 80),
    caching=st.booleans(),
    lookup=st.booleans(),
)
def test_every_sequence_has_exactly_one_outcome(seed, blocks, step_tokens, caching, lookup):
    dice = random.Random(seed)
    rig = Rig(
        blocks=blocks,
        step_tokens=step_tokens,
        prefix_caching=caching,
        speculative="prompt_lookup" if lookup else "",
        limits=queue_limits(10),
        running=5,
    )
    cancelled, asked = {}, {}
    for _ in range(dice.randrange(1, 25)):
        text = dice.choice([PREFIX, "abc", "<|raise|>", "x" * 50, ""]) + dice.choice(["", "y", "zz"])
        n = dice.choice([1, 1, 1, 2, 3])
        sampling = {"n": n, "seeds": tuple(range(n)), "temperature": dice.choice([0.0, 1.0]), "max_tokens": 40}
        request = rig.submit(text, **sampling)
        asked[request] = (text, sampling)
        if dice.random() < 0.3:
            victim, index = dice.choice(list(asked)), dice.choice([None, 0, 1])
            rig.cancel(victim, index)
            cancelled.setdefault(victim, set()).update({0, 1, 2} if index is None else {index})
        for _ in range(dice.randrange(4)):
            if rig.transport.inbox or not rig.backend.idle:
                rig.turn()
    rig.run(5000)
    for request, (text, sampling) in asked.items():
        answer = rig.answer(request)
        assert (answer.accepted is None) == (answer.refused is not None)
        if answer.accepted and not answer.failed:
            assert set(range(sampling["n"])) - set(answer.reasons) <= cancelled.get(request, set())
            assert "<|raise|>" not in text or cancelled.get(request)
            alone = Rig().ask(text, **sampling)
            assert all(answer.tokens[i] == alone.tokens[i] for i in answer.reasons)
    stats = rig.stats()
    assert (stats.running, stats.queued, stats.kv_blocks_used) == (0, 0, 0)
    assert not rig.backend.requests
    assert not rig.scheduler.suspects
    assert rig.backend.idle
    assert not [f for f in rig.transport.frames for r in f if isinstance(r, Failed) and r.error[0] != "EngineFailure"]


def neighbours(rig, count=7):
    return {rig.submit(text): text for text in (f"neighbour number {i} talks on and on" for i in range(count))}


def test_a_poisoned_step_harms_only_the_request_that_poisoned_it():
    rig = Rig()
    texts = neighbours(rig)
    rig.turn(5)
    at_fault = rig.submit("<|raise|>")
    rig.run()
    assert rig.answer(at_fault).failed == [
        "EngineFailure",
        "The engine failed while it computed this request.",
        None,
        "engine_error",
        {},
    ]
    assert {i: rig.answer(i).text() for i in texts} == texts
    assert rig.stats().recoveries == 2  # it is tried again, among requests that are known to work
    assert rig.stats().kv_blocks_used == 0


def test_a_request_at_fault_that_runs_alone_is_blamed_at_once():
    rig = Rig()
    assert rig.ask("<|raise|>").failed
    assert rig.stats().recoveries == 1


def test_a_request_at_fault_that_comes_together_with_others_is_found_by_trials_of_one_at_a_time():
    rig = Rig()
    first = neighbours(rig, 3)
    at_fault = rig.submit("<|raise|>")
    rest = neighbours(rig, 4)
    rig.run()
    assert rig.answer(at_fault).failed
    assert {i: rig.answer(i).text() for i in (first | rest)} == first | rest
    assert rig.stats().recoveries == 2
    assert not rig.scheduler.suspects


def test_newcomers_wait_while_suspects_are_tried():
    rig = Rig()
    a, b, at_fault = rig.submit("aaaa"), rig.submit("bbbb"), rig.submit("<|raise|>")
    rig.turn()
    assert len(rig.scheduler.suspects) == 3
    new = rig.submit("new")
    rig.turn()
    assert {s.request.id for s in rig.scheduler.running} == {a}
    rig.run()
    assert [rig.answer(i).text() for i in (a, b, new)] == ["aaaa", "bbbb", "new"]
    assert rig.answer(at_fault).failed
    assert not rig.scheduler.suspects


def test_suspects_that_are_cancelled_hold_nobody_up():
    rig = Rig()
    a, at_fault = rig.submit("aaaa"), rig.submit("<|raise|>")
    rig.turn()
    rig.cancel(a)
    rig.cancel(at_fault)
    new = rig.submit("new")
    rig.run()
    assert rig.answer(new).text() == "new"
    assert not rig.scheduler.suspects


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("Exception from src/x.cpp:1:\n/home/jenkins/y.cpp:2\n\nReal reason\n", "Real reason"),
        ("", "RuntimeError"),
        ("one", "one"),
    ],
)
def test_only_the_last_line_of_the_engines_messages_is_kept(text, line):
    assert last_line(RuntimeError(text)) == line
