"""After a step has failed, one request gets the error, and the others continue as if nothing had happened."""

import pytest

from lean_ovms.engine.errors import last_line
from tests.engine.rig import Rig


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
