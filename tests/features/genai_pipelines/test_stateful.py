"""The stateful pipeline on the real engine: one request at a time, with the results of direct calls of LLMPipeline."""

import json

import pytest

from lean_ovms.config import Config
from lean_ovms.engine.generation import request_validator
from lean_ovms.errors import EngineLost
from lean_ovms.types import SamplingParams
from tests.engine.real import EXACT, QUESTIONS, assert_empty, chat
from tests.engine.rig import Rig
from tests.features.genai_pipelines.test_pipeline_contract import work

pytestmark = pytest.mark.model

REGEX = json.dumps({"type": "structural_tag", "format": {"type": "regex", "pattern": "[a-c]{4}x"}})


@pytest.fixture(scope="module")
def direct():
    """Returns the texts of direct calls."""
    genai = pytest.importorskip("openvino_genai")
    properties = {**json.loads(EXACT["plugin_config"]), "KV_CACHE_PRECISION": "f32", "INFERENCE_PRECISION_HINT": "f32"}
    pipe = genai.LLMPipeline(str(Config().model_dir), "CPU", ATTENTION_BACKEND="SDPA", **properties)

    def generate(prompt, **fields):
        config = pipe.get_generation_config()
        config.max_new_tokens = 30
        for name, value in fields.items():
            setattr(config, name, value)
        ids = pipe.get_tokenizer().encode(prompt, add_special_tokens=False).input_ids
        return pipe.generate(ids, config).tokens[0]

    return generate


def drain(pipeline):
    while pipeline.busy():
        pipeline.step()


def test_answers_are_those_of_a_direct_call(stateful, direct):
    for question in QUESTIONS[:2]:
        answer = Rig(pipeline=stateful).ask(chat(question), max_tokens=30)
        assert answer.tokens[0] == direct(chat(question), do_sample=False)
    fields = {"temperature": 1.5, "top_p": 0.9, "top_k": 40, "presence_penalty": 0.5, "repetition_penalty": 1.2}
    answer = Rig(pipeline=stateful).ask(chat("Hello!"), max_tokens=30, seeds=(2**32,), **fields)
    assert answer.tokens[0] == direct(chat("Hello!"), do_sample=True, rng_seed=2**32, **fields)


def test_a_crowd_is_served_in_order_one_at_a_time(stateful):
    rig = Rig(pipeline=stateful)
    requests = [rig.submit(chat(q), max_tokens=6, ignore_eos=True) for q in QUESTIONS]
    ends = []
    for _ in range(4000):
        rig.turn()
        assert rig.stats().running <= 1
        ends += [r for r in requests if r not in ends and rig.answer(r).reasons]
        if len(ends) == len(requests):
            break
    assert ends == requests
    rig.run()
    assert_empty(rig)


def test_a_cancelled_request_ends_within_some_tokens_and_the_next_begins(stateful):
    rig = Rig(pipeline=stateful)
    endless = rig.submit(chat("Hello!"), max_tokens=7000, ignore_eos=True)
    after = rig.submit(chat("Hello!"), max_tokens=8)
    waiting = rig.submit(chat("Hello!"), max_tokens=8)
    for _ in range(400):
        rig.turn()
        if rig.answer(endless).tokens:
            break
    rig.cancel(waiting)
    rig.cancel(endless)
    rig.run()
    assert len(rig.answer(endless).tokens[0]) < 1000
    assert rig.answer(after).reasons == {0: "length"}
    assert not rig.answer(waiting).tokens
    assert_empty(rig)


def test_what_it_cannot_do_is_refused_with_the_field(stateful, monkeypatch):
    rows = (
        ({"beams": 2, "n": 2}, "best_of"),
        ({"logprobs": True}, "logprobs"),
        ({"prompt_logprobs": True}, "logprobs"),
    )
    for sampling, param in rows:
        refused = Rig(pipeline=stateful).ask(chat("Hello!"), **sampling).refused
        assert (refused[0], refused[2]) == ("BadRequest", param)
    monkeypatch.setattr(stateful, "max_prompt_tokens", 5)
    refused = Rig(pipeline=stateful).ask(list(range(40, 46))).refused
    assert refused[3] == "context_length_exceeded"


def test_a_grammar_shapes_the_answer(stateful, direct):
    import openvino_genai as genai

    handle = stateful.add(
        work(stateful.encode(chat("Hello!"), False), constraint=REGEX, sampling=SamplingParams(temperature=0))
    )
    ids = []
    while stateful.busy():
        stateful.step()
        if handle.can_read():
            ids += handle.read()[0].generated_ids
    form = genai.StructuredOutputConfig(structural_tags_config=REGEX)
    assert ids == direct(chat("Hello!"), do_sample=False, structured_output_config=form, max_new_tokens=8)
    assert len(stateful.decode(ids, True)) == 5


def test_a_failure_ends_only_the_request_at_fault(stateful):
    bad = json.dumps({"type": "structural_tag", "format": {"type": "regex", "pattern": "[a-"}})
    handle = stateful.add(work(constraint=bad))
    with pytest.raises(RuntimeError):
        drain(stateful)
    assert stateful.status(handle) == "finished"
    assert stateful.recoverable
    rig = Rig(pipeline=stateful)
    assert rig.ask(chat("Hello!"), max_tokens=8).reasons == {0: "length"}
    assert rig.stats().recoveries == 0


def test_a_pipeline_that_stays_broken_is_given_up(monkeypatch):
    from lean_ovms.features.genai_pipelines.child.stateful import StatefulPipeline

    rig = Rig(pipeline=StatefulPipeline(Config(**EXACT)))
    monkeypatch.setattr(request_validator, "check_token_ids", lambda *a: None)
    broken = rig.submit([5, 10**6], repetition_penalty=1.5, max_tokens=9)
    waiting = rig.submit(chat("Hello!"))
    with pytest.raises(EngineLost):
        rig.run()
    rig.worker.flush()
    assert [rig.answer(r).failed[0] for r in (broken, waiting)] == ["EngineFailure"] * 2


def test_a_device_that_says_nothing_for_too_long_is_given_up(stateful, monkeypatch):
    handle = stateful.add(work(max_tokens=4000))
    with monkeypatch.context() as patched:
        patched.setattr(stateful, "token_timeout_s", -1.0)
        with pytest.raises(TimeoutError):
            stateful.step()
        assert not stateful.recoverable
    stateful.recoverable = True
    handle.cancel()
    drain(stateful)


def test_a_request_that_is_not_begun_yet_is_no_silence_of_the_device(stateful, monkeypatch):
    with stateful._changed, monkeypatch.context() as patched:  # while the thread waits
        stateful._last_token_at = -1e9
        patched.setattr(stateful, "_has_news", lambda: True)
        stateful.add(work(max_tokens=2))
        stateful.step()
    drain(stateful)
