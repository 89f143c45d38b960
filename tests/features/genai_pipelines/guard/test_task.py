"""Requests of the task to openvino_genai's pipelines."""

from dataclasses import replace

import pytest

from lean_ovms.config import Config
from lean_ovms.engine.generation.fake_tokenizer import EOS
from lean_ovms.engine.protocol import Tokens
from lean_ovms.features.genai_pipelines.child.guard.backend import GuardedPipeline
from tests.engine.rig import Rig
from tests.features.genai_pipelines.guard.fake_pipeline import FakePipeline


def idle(rig):
    stats = rig.stats()
    return (stats.running, stats.queued, stats.kv_blocks_used) == (0, 0, 0) and not rig.pipeline.busy()


# --- one request


def test_beams_come_at_the_end_best_first_and_cut_to_n():
    rig = Rig()
    request = rig.submit("abc", n=2, beams=4, logprobs=True)
    rig.run()
    answer = rig.answer(request)
    assert [answer.text(i) for i in (0, 1)] == ["abc", "bca"]  # the best and second best beams of the script
    assert answer.reasons == {0: "stop", 1: "stop"}
    assert answer.tokens[0][-1] == EOS
    assert len(answer.logprobs[1]) == len(answer.tokens[1])
    assert len([f for f in rig.transport.frames if any(isinstance(r, Tokens) for r in f)]) == 1
    assert idle(rig)


# --- refusals


def test_prompt_logprobs_need_prefix_caching_off():
    refused = Rig(prefix_caching=True).ask("hello", prompt_logprobs=True).refused
    assert "--enable_prefix_caching false" in refused[1]
    assert refused[2] == "echo"  # the client's name for the field


def test_no_more_run_than_have_memory_for_their_states():
    """This limit is for hybrid models. The other requests wait, and each gets its answer."""
    pipeline = FakePipeline()
    pipeline.info = replace(pipeline.info, max_sequences=2, state_bytes=100)
    assert GuardedPipeline.from_config(pipeline, Config()).waiting.slots == 2
    rig = Rig(pipeline=pipeline, running=2)
    ids = [rig.submit("hello") for _ in range(5)]
    rig.turn(2)
    stats = rig.stats()
    assert (stats.running, stats.queued, stats.state_bytes) == (2, 3, 200)
    rig.run()
    assert all(rig.answer(i).reasons for i in ids)
    assert rig.stats().state_bytes == 0


def test_a_pipeline_that_overshoots_is_cut_and_cancelled():
    rig = Rig(speculative="prompt_lookup")
    request = rig.submit("abcdef", max_tokens=3, logprobs=True)
    rig.turn()
    output = rig.pipeline.live[0]
    output.request.max_tokens = 100
    output.answer += [ord("x")] * 99
    rig.pipeline.script = type(rig.pipeline.script)(speculative="prompt_lookup", tokens_per_step=6)
    rig.run()
    answer = rig.answer(request)
    assert len(answer.tokens[0]) == len(answer.logprobs[0]) == 3
    assert answer.reasons == {0: "length"}
    assert idle(rig)


def test_beams_of_assisted_pipelines_are_refused():
    assert Rig(speculative="draft").ask("hi", beams=2).refused[2] == "best_of"


@pytest.mark.parametrize(
    ("speculative", "asked", "given"),
    [
        ("draft", {}, (5, 0.0, 0)),
        ("draft", {"assistant_confidence_threshold": 0.5}, (0, 0.5, 0)),
        ("draft", {"num_assistant_tokens": 3, "max_ngram_size": 9}, (3, 0.0, 9)),
        ("prompt_lookup", {}, (5, 0.0, 3)),
        ("prompt_lookup", {"num_assistant_tokens": 2, "max_ngram_size": 4}, (2, 0.0, 4)),
        ("prompt_lookup", {"assistant_confidence_threshold": 0.5}, (5, 0.0, 3)),
        ("", {"num_assistant_tokens": 3}, (0, 0.0, 0)),
        ("", {"assistant_confidence_threshold": 0.5, "max_ngram_size": 3}, (0, 0.0, 0)),
    ],
)
def test_every_request_gets_the_assistants_fields_that_its_pipeline_needs(speculative, asked, given):
    rig = Rig(speculative=speculative)
    rig.submit("hello", **asked)
    rig.turn()
    sampling = rig.pipeline.live[0].request.sampling
    fields = (sampling.num_assistant_tokens, sampling.assistant_confidence_threshold, sampling.max_ngram_size)
    assert fields == given


# --- the end
