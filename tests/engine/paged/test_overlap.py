"""The worker on the paged engine sends outputs and handles commands while the next step is computed."""

import pytest

from lean_ovms.engine.paged import assemble
from tests.engine.real import QUESTIONS, assert_empty, chat, load
from tests.engine.rig import Rig

pytestmark = pytest.mark.model
ASKED = {"max_tokens": 20, "ignore_eos": True}


@pytest.fixture(scope="module")
def paged():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(assemble, "allowed_cores", lambda: 64)
        return load(blocks=600, pipeline_type="PAGED")


def test_outputs_are_sent_while_the_next_step_computes(paged, monkeypatch):
    rig, sent = Rig(pipeline=paged), []
    send = rig.transport.send
    runner = paged.runner
    monkeypatch.setattr(rig.transport, "send", lambda records: (sent.append(runner.running is not None), send(records)))
    numbers = [rig.submit(chat(question), **ASKED) for question in QUESTIONS[:3]]
    rig.run()
    assert [len(rig.answer(number).tokens[0]) for number in numbers] == [20] * 3
    assert sent.count(True) >= 18
    assert_empty(rig)


@pytest.mark.parametrize(("cores", "overlapping"), [(2, False), (3, True)])
def test_steps_overlap_where_the_network_leaves_two_cores(monkeypatch, cores, overlapping):
    monkeypatch.setattr(assemble, "allowed_cores", lambda: cores)
    rig = Rig(pipeline=load(blocks=60, pipeline_type="PAGED"))  # so small a network is computed in one thread
    monkeypatch.setattr(rig.pipeline._model, "start" if not overlapping else "infer", lambda: pytest.fail("used"))
    assert len(rig.ask(chat("Hello!"), **ASKED).tokens[0]) == 20
