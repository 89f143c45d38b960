"""After a step of openvino_genai's pipeline has failed, the pipeline is drained or given up."""

import pytest

from lean_ovms.engine.errors import EngineLost
from lean_ovms.engine.protocol import Failed
from lean_ovms.features.genai_pipelines.child.guard.backend import DRAIN_STEPS
from tests.engine.rig import Rig, queue_limits


def test_a_step_that_fails_ends_those_who_run_and_nobody_who_waits():
    rig = Rig(running=3)
    ids = [rig.submit(text) for text in ("one", "two", "<|raise|>", "four", "five")]
    rig.run()
    wrong = ["EngineFailure", "The engine failed while it computed this request.", None, "engine_error"]
    assert [rig.answer(i).failed for i in ids] == [wrong] * 3 + [None] * 2
    assert [rig.answer(i).text() for i in ids[3:]] == ["four", "five"]
    assert (rig.stats().recoveries, rig.stats().kv_blocks_used) == (1, 0)
    assert not rig.backend.requests


def test_a_request_of_several_sequences_fails_as_a_whole_and_once():
    rig = Rig()
    request = rig.submit("<|raise|>", n=3, seeds=(1, 2, 3), temperature=1.0)
    rig.run()
    told = [r for frame in rig.transport.frames for r in frame if isinstance(r, Failed)]
    assert [one.id for one in told] == [request]
    assert not rig.backend.requests


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
