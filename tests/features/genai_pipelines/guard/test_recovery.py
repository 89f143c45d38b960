"""After a step of openvino_genai's pipeline that raised: it is drained, or given up."""

import pytest

from lean_ovms.engine.errors import EngineLost
from lean_ovms.features.genai_pipelines.child.guard.backend import DRAIN_STEPS
from tests.engine.rig import Rig, queue_limits


def neighbours(rig, count=7):
    return {rig.submit(text): text for text in (f"neighbour number {i} talks on and on" for i in range(count))}


def test_a_newcomer_is_not_blamed_for_what_another_does_in_the_middle_of_its_answer():
    rig = Rig()
    old = rig.submit("an old one that goes on for a while")
    rig.turn(4)
    step = rig.pipeline.step

    def once():
        rig.pipeline.step = step
        rig.pipeline.poisoned = True
        raise RuntimeError("in the middle of the old one")

    rig.pipeline.step = once
    new = rig.submit("new")
    rig.run()
    assert rig.answer(old).text() == "an old one that goes on for a while"
    assert rig.answer(new).text() == "new"


def test_what_was_computed_before_the_failure_is_read_before_everybody_is_cancelled():
    rig = Rig()
    request = rig.submit("hello")
    rig.turn(2)
    handle = rig.pipeline.live[0]
    step = rig.pipeline.step

    def half_a_step():
        rig.pipeline.sample(handle)
        rig.pipeline.step = step
        raise RuntimeError("half way")

    rig.pipeline.step = half_a_step
    rig.turn()
    assert rig.answer(request).text() == "hel"
    rig.run()
    assert rig.answer(request).text() == "hello"


def test_failures_that_nobody_in_particular_causes_end_too():
    rig = Rig()
    step = rig.pipeline.step

    def moody():
        step()
        if rig.pipeline.live and rig.pipeline.steps % 3 == 0:
            raise RuntimeError("bad mood")

    rig.pipeline.step = moody
    ids = [rig.submit("hello"), rig.submit("world")]
    rig.run()
    outcomes = [rig.answer(i) for i in ids]
    assert all(a.failed or a.reasons == {0: "stop"} for a in outcomes)


def test_a_drain_that_does_not_end_fails_everybody_and_gives_the_process_up():
    rig = Rig(limits=queue_limits(9), running=2)
    ids = [rig.submit("hello"), rig.submit("world"), rig.submit("queued")]
    rig.turn(2)

    def broken():
        raise RuntimeError("for ever")

    rig.pipeline.step = broken
    with pytest.raises(EngineLost, match="for ever"):
        rig.worker.run()
    assert [rig.answer(i).failed[0] for i in ids] == ["EngineFailure"] * 3


def test_a_pipeline_that_stays_busy_is_given_up_after_a_few_steps():
    rig = Rig()
    rig.submit("hello")
    rig.turn(2)
    steps = []

    def deaf():
        steps.append(1)
        if len(steps) == 1:
            raise RuntimeError("once")

    rig.pipeline.step = deaf
    rig.pipeline.busy = lambda: True
    with pytest.raises(EngineLost):
        rig.worker.run()
    assert len(steps) == 1 + DRAIN_STEPS


def test_a_handle_that_raises_when_it_is_read_does_not_stop_the_recovery(monkeypatch):
    rig = Rig()
    request = rig.submit("hello")
    rig.turn(2)
    handle = rig.pipeline.live[0]
    monkeypatch.setattr(type(handle), "can_read", lambda self: True)
    rig.turn()
    monkeypatch.undo()
    rig.run()
    answer = rig.answer(request)
    assert answer.failed or answer.text() == "hello"
