"""The guard of openvino_genai's pipelines: who starts, what it refuses, lost sequences, failing steps, audio."""

from dataclasses import replace

import pytest

from lean_ovms.config import Config
from lean_ovms.engine.generation import fake_tokenizer as words
from lean_ovms.engine.generation.fair_queue import GenerationRequest
from lean_ovms.engine.generation.fake_tokenizer import EOS
from lean_ovms.engine.protocol import SpokenTokens, Tokens
from lean_ovms.errors import EngineLost
from lean_ovms.features.genai_pipelines.child.guard import backend
from lean_ovms.features.genai_pipelines.child.guard.backend import DRAIN_STEPS, GuardedPipeline
from lean_ovms.features.genai_pipelines.child.guard.pipeline import GuardedOutput
from lean_ovms.features.genai_pipelines.child.guard.sequence import GuardedSequence, emit
from lean_ovms.types import SamplingParams
from tests.engine.rig import Rig, queue_limits
from tests.features.genai_pipelines.guard.fake_pipeline import LOSE, STALL, FakePipeline

# --- who starts


def running(rig):
    return [s.request.id for s in rig.scheduler.running]


def test_sequences_start_whatever_they_may_need_as_the_pipeline_preempts_by_itself():
    rig = Rig(blocks=6)
    ids = [rig.submit(text * 20, ignore_eos=True, max_tokens=120) for text in ("ab", "cd", "ef")]
    rig.turn()
    assert running(rig) == ids
    rig.run()
    assert [rig.answer(i).text() for i in ids] == ["ab" * 60, "cd" * 60, "ef" * 60]


def test_of_sequences_with_draft_tokens_the_newest_fails_before_the_cache_is_full():
    rig = Rig(blocks=26, speculative="prompt_lookup", tokens_per_step=3)
    ids = [rig.submit("ab" * 20, ignore_eos=True, max_tokens=500) for _ in range(3)]
    rig.turn(3)
    assert running(rig) == ids[:2]  # each has 2 blocks, and must keep 8 in reserve
    rig.run()
    assert rig.answer(ids[0]).reasons == {0: "length"}
    assert rig.answer(ids[1]).failed[:2] == ["EngineFailure", "The engine ran out of KV cache for this request."]
    assert rig.answer(ids[2]).reasons == {0: "length"}


def test_a_beam_search_starts_when_the_lives_of_all_fit_and_then_nobody_starts_who_would_not():
    rig = Rig(blocks=20, step_tokens=8)
    plain = rig.submit("ab" * 20, ignore_eos=True, max_tokens=300)
    rig.turn(2)
    search = rig.submit("hello" * 10, beams=4, n=1, max_tokens=32)
    later = rig.submit("later", max_tokens=9)
    rig.turn()
    assert running(rig) == [plain]
    rig.cancel(plain)
    rig.turn()
    assert running(rig) == [search, later]
    rig.run()
    assert rig.answer(search).reasons == {0: "length"}
    assert rig.answer(later).text() == "later"


def constrained(rig, request_id):
    """Turns a request into one with a grammar, which the script ignores."""
    rig.turn()
    request = rig.scheduler.requests[request_id]
    request.constraint = "{}"


def test_sequences_with_a_grammar_do_not_start_while_one_is_compiled(monkeypatch):
    rig = Rig(running=1)
    old = rig.submit("ab" * 20, ignore_eos=True, max_tokens=120)
    rig.turn()
    constrained(rig, waits := rig.submit("cd" * 20, ignore_eos=True, max_tokens=120))
    admit = rig.backend.admit
    monkeypatch.setattr(rig.backend, "admit", lambda *, compiling: admit(compiling=True))
    rig.cancel(old)
    rig.turn(5)
    assert [s.request.id for s in rig.scheduler.waiting] == [waits]
    monkeypatch.undo()
    rig.run()
    assert len(rig.answer(waits).tokens[0]) == 120


def test_a_request_for_prompt_logprobs_starts_first_of_all_and_nobody_passes_it():
    """GenAI confuses its log probabilities with those of requests in front of it in the batch."""
    rig = Rig()
    before = [rig.submit("before", max_tokens=9) for _ in range(2)]
    rig.turn(2)
    echo, after = rig.submit("echo", prompt_logprobs=True), rig.submit("after")
    first = []
    add = rig.pipeline.add
    rig.pipeline.add = lambda work: (first.append((work.echo, len(rig.pipeline.live))), add(work))[1]
    rig.run()
    assert first == [(True, 0), (False, 1)]
    assert [rig.answer(i).text() for i in (*before, echo, after)] == ["before", "before", "echo", "after"]


# --- prefixes
PREFIX = "the same beginning of more than thirty-two characters, "


def test_of_many_prompts_that_nobody_wants_only_the_one_that_is_half_in_the_prefix_cache_is_computed():
    rig = Rig(prefix_caching=True, step_tokens=16)
    requests = [rig.submit(f"{i}{PREFIX}") for i in range(5)]
    other = rig.submit("other")
    rig.turn(2)
    for request in reversed(requests):
        rig.cancel(request)
    rig.turn()
    assert [s.request.id for s in rig.scheduler.running] == [requests[0], other]
    rig.run()
    assert not rig.answer(requests[0]).tokens
    assert rig.answer(other).text() == "other"
    assert (rig.stats().running, rig.stats().kv_blocks_used) == (0, 0)


def test_a_step_that_fails_ends_those_whom_nobody_wants():
    rig = Rig(prefix_caching=True, step_tokens=16)
    request = rig.submit(PREFIX)
    rig.turn(2)
    rig.cancel(request)
    rig.turn()
    rig.submit([words.RAISE])
    rig.run()
    assert not rig.answer(request).tokens
    assert rig.answer(request).failed is None
    assert rig.ask("other").text() == "other"


# --- the pipeline gives up on somebody


def test_whoever_the_pipeline_lost_fails_with_the_reason():
    rig = Rig()
    request, other = rig.submit([LOSE]), rig.submit("hello")
    rig.run()
    assert rig.answer(request).failed[:2] == ["EngineFailure", "The engine ran out of KV cache for this request."]
    assert rig.answer(other).text() == "hello"
    assert rig.stats().kv_blocks_used == 0


def test_the_lost_is_found_while_others_keep_the_pipeline_talking():
    rig = Rig()
    request, other = rig.submit("hello there"), rig.submit("x", ignore_eos=True, max_tokens=100)
    rig.turn(4)
    rig.pipeline.live[0].state = "lost"
    rig.turn(2 * backend.CHECK_EVERY)
    assert "KV cache" in rig.answer(request).failed[1]
    rig.run()
    assert len(rig.answer(other).tokens[0]) == 100


def test_a_stuck_pipeline_costs_the_stuck_request_only():
    rig = Rig()
    now = [0.0]
    rig.scheduler.waiting.clock = lambda: now.__setitem__(0, now[0] + 0.01) or now[0]
    stuck, other = rig.submit([STALL]), rig.submit("hello")
    rig.run()
    assert rig.answer(stuck).failed[0] == "EngineFailure"
    assert rig.answer(other).text() == "hello"
    assert now[0] > backend.STUCK_S


def test_a_long_prefill_is_not_taken_for_stuck():
    rig = Rig(step_tokens=4)
    rig.scheduler.waiting.clock = iter(range(0, 10**6, 100)).__next__
    assert rig.ask("x" * 400, max_tokens=3).text() == "xxx"
    assert rig.stats().recoveries == 0


def test_an_add_that_raises_after_all_fails_its_request_alone():
    from lean_ovms.errors import BadRequest

    rig = Rig()
    add = rig.pipeline.add

    def picky(work):
        if work.tokens[0] == ord("b"):
            raise BadRequest("no")
        return add(work)

    rig.pipeline.add = picky
    good, bad = rig.submit("good"), rig.submit("bad", n=2, seeds=(1, 2), temperature=1.0)
    rig.run()
    assert rig.answer(bad).failed[:2] == ["BadRequest", "no"]
    assert rig.answer(good).text() == "good"
    assert not rig.scheduler.requests


# --- the law: one final per sequence, whatever happens


def test_right_guesses_of_an_assistant_are_counted():
    """The first output has one token; the other nine come in outputs of three."""
    rig = Rig(speculative="prompt_lookup", tokens_per_step=3)
    rig.ask("abcdefghijklm", max_tokens=10, ignore_eos=True)
    stats = rig.stats()
    generated = 10
    assert stats.drafts >= 3
    assert stats.accepted > 0
    assert stats.drafts + stats.accepted <= generated
    assert stats.speculative
    assert stats.drafted is None  # the guard sees only outputs
    assert list(stats.accepted_by_position) == sorted(stats.accepted_by_position, reverse=True)
    assert sum(stats.accepted_by_position) == stats.accepted
    plain = Rig()
    plain.ask("abc", max_tokens=10)
    assert (plain.stats().speculative, plain.stats().drafts, plain.stats().accepted) == (False, 0, 0)


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


def test_a_step_that_fails_ends_those_who_run_and_nobody_who_waits():
    rig = Rig(running=3)
    ids = [rig.submit(text) for text in ("one", "two")]
    ids.append(rig.submit("<|raise|>", n=2, seeds=(1, 2), temperature=1.0))  # it fails as a whole and once
    ids += [rig.submit(text) for text in ("four", "five")]
    rig.run()
    wrong = ["EngineFailure", "The engine failed while it computed this request.", None, "engine_error", {}]
    assert [rig.answer(i).failed for i in ids] == [wrong] * 3 + [None] * 2
    assert [rig.answer(i).text() for i in ids[3:]] == ["four", "five"]
    assert (rig.stats().recoveries, rig.stats().kv_blocks_used) == (1, 0)
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


@pytest.fixture
def sequence():
    request = GenerationRequest(7, SamplingParams(speaker="ada"), {0}, max_tokens=3)
    return GuardedSequence(request=request, index=0, blocks=1)


def test_audio_comes_between_tokens(sequence):
    out = []
    steps = [GuardedOutput([1, 2]), GuardedOutput([], audio=b"ab"), GuardedOutput([3], audio=b"cd")]
    assert [emit(sequence, {0: step}, out) for step in steps] == [False, False, True]
    assert out == [
        SpokenTokens(7, 0, [1, 2], None, None, b""),
        SpokenTokens(7, 0, [], None, None, b"ab"),
        SpokenTokens(7, 0, [3], None, "length", b"cd"),
    ]
