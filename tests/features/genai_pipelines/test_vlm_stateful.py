"""Vision with one conversation at a time: the same answers as in a batch, where both can answer."""

import pytest

from lean_ovms.engine.protocol import Cancel
from tests.engine.real import assert_empty
from tests.engine.rig import Rig
from tests.engine.vlm import load, load_stateful, said, see, tags, turn

pytestmark = pytest.mark.model


@pytest.fixture(scope="module")
def stateful():
    return load_stateful()


def words(rig, request):
    return rig.pipeline.decode(rig.answer(request).tokens[0], True)


@pytest.mark.parametrize("colours", [(), ("yellow", "red", "blue")])
def test_answers_and_counts_are_those_of_the_batch(stateful, colours):
    prompt = turn(tags(len(colours)) + "describe")
    batched, alone = Rig(pipeline=load()), Rig(pipeline=stateful)
    answers = []
    for rig in (batched, alone):
        request = see(rig, prompt, *colours)
        rig.run()
        answers.append((words(rig, request), rig.answer(request).reasons, rig.answer(request).accepted.prompt_tokens))
    assert answers[0] == answers[1]
    assert_empty(alone)


def test_requests_wait_for_each_other(stateful):
    rig = Rig(pipeline=stateful)
    requests = [see(rig, turn(tags(1) + "describe"), colour) for colour in ("red", "blue", "green")]
    text, gone = see(rig, turn("Hello!")), see(rig, turn("Hello!"), ignore_eos=True, max_tokens=900)
    short = see(rig, turn(tags(1) + "describe"), "red", max_tokens=2)
    rig.turn(3)
    rig.put(Cancel(gone))
    rig.run()
    assert rig.answer(short).reasons == {0: "length"}
    assert [words(rig, r) for r in requests] == [said("red"), said("blue"), said("green")]
    assert words(rig, text) == "Hello!"
    assert_empty(rig)
