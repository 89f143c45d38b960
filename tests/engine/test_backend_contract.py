"""The promises of generation.backend.Backend: on both schedulers with a scripted model, and on the real engines."""

import functools

import pytest

from lean_ovms.engine.paged import step_runner
from tests.engine.real import chat, draft_model, load
from tests.engine.rig import Rig, scripted
from tests.features.genai_pipelines.guard.fake_pipeline import FakePipeline, Script

BLOCKS = 12
CAPACITY = BLOCKS * 32
MEANWHILE = " with commands during steps"
REAL = ("LM_CB", "PAGED", f"PAGED{MEANWHILE}")
KINDS = ["guarded", "scripted", f"scripted{MEANWHILE}", *(pytest.param(kind, marks=pytest.mark.model) for kind in REAL)]


@functools.cache
def real(kind):
    """Returns a real engine, which every test leaves as it found it."""
    made = load(blocks=BLOCKS, pipeline_type=kind, max_num_batched_tokens=256)
    made._overlapping = False  # so that on every machine a turn is a step
    return made


@pytest.fixture(scope="module", params=KINDS)
def loaded(request):
    if request.param == "guarded":
        return FakePipeline(Script(blocks=BLOCKS, context=131_072))
    if request.param.startswith("scripted"):
        return scripted(blocks=BLOCKS, context=131_072)
    return real(request.param.removesuffix(MEANWHILE))


class StepRig(Rig):
    """A rig whose turns end with the end of a step."""

    def turn(self, times=1):
        before = len(self.transport.frames)
        for _ in range(times):
            super().turn()
            while self.backend.started:
                super().turn()
        return self.sent(before)


@pytest.fixture
def rig(loaded, request, monkeypatch):
    """Checks that every test leaves its engine as it found it."""
    meanwhile = request.node.callspec.params["loaded"].endswith(MEANWHILE)
    monkeypatch.setattr(step_runner, "SHORT_S", -1)  # each step is long
    made = StepRig(pipeline=loaded, meanwhile=meanwhile)
    yield made
    stats = made.stats()
    assert (made.backend.idle, stats.running, stats.queued, stats.kv_blocks_used) == (True, 0, 0, 0)
    assert not made.backend.requests


FREE = {"ignore_eos": True}


def test_a_step_brings_one_record_of_one_token_for_everybody_who_runs(rig):
    numbers = [rig.submit([50 + i, 51, 52], max_tokens=8, **FREE) for i in range(3)]
    rig.turn()
    assert [len(rig.answer(number).tokens[0]) for number in numbers] == [1, 1, 1]
    rig.run()


def test_max_tokens_is_kept_to_the_token(rig):
    answer = rig.ask([40, 41, 42], max_tokens=5, **FREE)
    assert (len(answer.tokens[0]), answer.reasons) == (5, {0: "length"})


def test_a_stop_token_ends_and_is_part_of_the_ids(rig):
    free = rig.ask([40, 41, 42], max_tokens=6, **FREE).tokens[0]
    answer = rig.ask([40, 41, 42], max_tokens=6, stop_token_ids=(free[2],), **FREE)
    assert answer.tokens[0] == free[: free.index(free[2]) + 1]
    assert answer.reasons == {0: "stop"}


def test_the_same_request_gives_the_same_tokens_alone_and_among_others(rig):
    alone = rig.ask([40, 41, 42], max_tokens=20, **FREE).tokens
    others = [rig.submit([60 + i, 7, 9], max_tokens=15, **FREE) for i in range(3)]
    number = rig.submit([40, 41, 42], max_tokens=20, **FREE)
    rig.run()
    assert rig.answer(number).tokens == alone
    assert all(len(rig.answer(other).tokens[0]) == 15 for other in others)


def test_a_preempted_request_goes_on_as_if_nothing_had_happened(rig):
    prompts = [[40 + i, 41, 42] for i in range(3)]  # at their ends they need 21 blocks together
    alone = [rig.ask(prompt, max_tokens=200, **FREE).tokens for prompt in prompts]
    numbers = [rig.submit(prompt, max_tokens=200, **FREE) for prompt in prompts]
    rig.run()
    assert [rig.answer(number).tokens for number in numbers] == alone


def test_seeds_decide_what_is_sampled(rig):
    def sampled(seed):
        return rig.ask(list(range(40, 70)), temperature=2.0, seeds=(seed,), max_tokens=8, **FREE).tokens[0]

    assert sampled(1) == sampled(1)
    assert len({tuple(sampled(seed)) for seed in range(4)}) > 1


def test_log_probabilities_come_one_per_token_and_those_of_the_prompt_before_them(rig):
    prompt = [40 + i % 99 for i in range(300)]
    answer = rig.ask(prompt, max_tokens=2, logprobs=True, prompt_logprobs=True, **FREE)
    assert len(answer.logprobs[0]) == 2
    assert answer.prompt_logprobs[0] is None
    assert len(answer.prompt_logprobs) == 300
    assert all(value < 0 for value in answer.prompt_logprobs[1:])


def test_a_beam_search_comes_at_its_end_with_the_best(rig):
    number = rig.submit([40, 41, 42], beams=3, n=2, max_tokens=4, **FREE)
    rig.run()
    answer = rig.answer(number)
    assert [len(answer.tokens[index]) for index in (0, 1)] == [4, 4]
    assert answer.tokens[0] != answer.tokens[1]


def test_a_long_prompt_takes_steps_without_output(rig):
    number = rig.submit([40 + i % 99 for i in range(300)], max_tokens=1, **FREE)
    rig.turn()
    assert not rig.answer(number).tokens
    rig.run()
    assert len(rig.answer(number).tokens[0]) == 1


def test_nothing_is_said_of_a_cancelled_request_and_its_blocks_are_free(rig):
    for _ in range(3):
        number = rig.submit([40] * (CAPACITY - 40), max_tokens=30, **FREE)
        while not rig.answer(number).tokens:
            rig.turn()
        rig.cancel(number)
        rig.turn()
    assert len(rig.ask([41] * (CAPACITY - 40), max_tokens=30, **FREE).tokens[0]) == 30
    assert not rig.answer(number).reasons


def test_the_whole_cache_can_be_used_by_one_and_no_more_is_accepted(rig):
    assert len(rig.ask([40] * (CAPACITY - 50), max_tokens=50, **FREE).tokens[0]) == 50
    assert rig.ask([40] * (CAPACITY + 1)).refused[3] == "context_length_exceeded"


def test_more_than_the_cache_holds_is_computed_in_turns(rig):
    numbers = [rig.submit([40 + i] * 100, max_tokens=60, **FREE) for i in range(5)]
    rig.run()
    assert [len(rig.answer(number).tokens[0]) for number in numbers] == [60] * 5


@pytest.mark.parametrize("text", ["Hello, wörld 🙂\n  two", ""])
def test_encode_and_decode_are_inverse(rig, text):
    assert rig.backend.decode(rig.backend.encode(text, False), True) == text


def test_the_model_says_what_it_is(rig):
    info = rig.backend.info
    assert info.vocab_size > max(info.eos_token_ids) >= 0
    assert (info.kv_blocks, info.block_size, info.context_length) == (BLOCKS, 32, 131_072)
    assert len(rig.backend.vocabulary.pieces) == info.vocab_size


@pytest.mark.model
@pytest.mark.parametrize("options", [{"draft_model_path": draft_model()}, {"prompt_lookup": True}])
def test_drafts_bring_several_tokens_of_a_step_and_the_same_text(options, engine):
    rig = Rig(pipeline=load(blocks=BLOCKS, pipeline_type="PAGED", **options))
    asked = {"max_tokens": 80, "num_assistant_tokens": 4, "max_ngram_size": 3, **FREE}  # the answer repeats itself
    answer = rig.ask(chat("Count from 1 to 9."), **asked)
    assert rig.stats().steps < 80
    assert answer.tokens == Rig(pipeline=engine).ask(chat("Count from 1 to 9."), max_tokens=80, **FREE).tokens
