"""Fields that not every pipeline supports, through the worker on the scripted pipeline with and without them."""

from dataclasses import asdict, replace

import pytest

from lean_ovms.engine.generation.repetition import repeats
from lean_ovms.engine.paged.thinking import Thinking, ThinkingState
from lean_ovms.engine.protocol import Submit
from lean_ovms.types import CAPABILITIES, SamplingParams
from tests.engine.rig import LIMITS, Rig

VALUES = {
    "top_logprobs": 2,
    "logprob_token_ids": (5,),
    "prompt_top_logprobs": 1,
    "logit_bias": ((5, 1.0),),
    "allowed_token_ids": (5,),
    "bad_words": ("x",),
    "thinking_token_budget": 4,
    "early_stopping": True,
    "cache_salt": "mine",
    "report_progress": True,
}


def score(token):
    return -(token + 1) / 1024


@pytest.mark.parametrize("name", CAPABILITIES)
def test_a_pipeline_without_the_capability_refuses_the_field(name):
    refused = Rig().ask("hello", **{name: VALUES[name]}).refused
    assert refused[1:3] == [f"{name} is not supported by this model's pipeline", name]
    fields = {name: VALUES[name], "thinking_open": True, "thinking_tags": ("<a>", "</a>")}
    assert Rig(capable=True).ask("hello", logprobs=True, **fields).refused is None


@pytest.mark.parametrize("tokens_per_step", [1, 4])
def test_every_token_has_its_alternatives_up_to_the_end(tokens_per_step):
    rig = Rig(capable=True, tokens_per_step=tokens_per_step)
    answer = rig.ask("abcdef", logprobs=True, top_logprobs=2, max_tokens=5)
    assert answer.text() == "abcde"
    assert answer.logprobs[0] == [score(token) for token in b"abcde"]
    assert answer.top[0] == [[(token, score(token)), (token + 1, score(token) - 0.5)] for token in b"abcde"]
    named = Rig(capable=True).ask("ab", logprobs=True, logprob_token_ids=(9, 7))
    assert named.top[0] == [[(9, score(9)), (7, score(7))]] * 3


def test_a_text_that_was_started_again_has_the_rest_of_its_alternatives():
    rig = Rig(capable=True)
    request = rig.submit("abcdef", logprobs=True, top_logprobs=1)
    rig.turn(3)
    [sequence] = rig.scheduler.running
    sequence.request.constraint = "{}"  # a text with a grammar is generated from its beginning once more
    rig.scheduler._abort(sequence)
    rig.scheduler.requeue(sequence)
    rig.run()
    answer = rig.answer(request)
    assert answer.text() == "abcdef"
    assert [top[0][0] for top in answer.top[0]] == answer.tokens[0]


def test_a_prompt_is_scored_with_alternatives_beside_the_prefix_cache():
    rig = Rig(capable=True, prefix_caching=True)
    other = rig.submit("other", max_tokens=50, ignore_eos=True)
    rig.turn(2)
    answer = rig.answer(rig.submit("abc", prompt_logprobs=True, prompt_top_logprobs=1, n=2, seeds=(1, 2)))
    rig.turn(2)
    answer = rig.answer(2)  # it did not wait until the other was finished
    assert answer.prompt_logprobs == [None, score(ord("b")), score(ord("c"))]
    assert answer.prompt_ranks == [1, 1]
    assert answer.prompt_top == [[(ord("b"), score(ord("b")))], [(ord("c"), score(ord("c")))]]
    assert not rig.answer(other).reasons
    rig.run()


def test_beams_have_alternatives_and_come_behind_the_prompts_log_probabilities():
    answer = Rig(capable=True).ask("abc", prompt_logprobs=True, logprobs=True, top_logprobs=2, beams=3, n=2)
    assert answer.prompt_logprobs == [None, score(ord("b")), score(ord("c"))]
    for index in (0, 1):
        assert [top[0][0] for top in answer.top[index]] == answer.tokens[index]
    refused = Rig().ask("abc", prompt_logprobs=True, logprobs=True, beams=3).refused
    assert "combined with beam search" in refused[1]


def test_cached_tokens_come_from_the_pipeline_that_counts_them():
    rig = Rig(capable=True, prefix_caching=True, step_tokens=4)
    assert rig.ask("hello").cached == 0
    rig.submit("hello world", n=2, seeds=(1, 2), temperature=1.0)
    rig.turn()
    rig.scheduler.running[0].handle.cached = 3
    rig.run()
    assert rig.answer(2).cached == 3
    assert Rig(prefix_caching=True).ask("hello").cached is None


@pytest.mark.parametrize(("blank", "found"), [([301], ((8,), (301,))), ([231, 8], ((8,),)), ([8], ((8,),))])
def test_a_bad_word_is_forbidden_after_a_blank_too_unless_that_is_a_token_of_its_own(monkeypatch, blank, found):
    rig = Rig(capable=True)
    texts = {"the": [8], " the": blank}
    monkeypatch.setattr(rig.pipeline, "encode", lambda text, special: texts[text])
    assert rig.task.admission.bad_words(("the",), rig.pipeline.encode) == found
    assert rig.task.admission.bad_words((" the",), rig.pipeline.encode) == found


def test_forbidden_tokens_are_left_out():
    rig = Rig(capable=True)
    assert rig.ask("abcab", bad_words=("bc", "zz")).text() == "abab"
    assert rig.ask("abcab", logit_bias=((ord("a"), -100),)).text() == "bcb"
    assert rig.ask("abcab", allowed_token_ids=(ord("c"),)).text() == "c"


@pytest.mark.parametrize("fields", [{"min_tokens": 2}, {"beams": 2}])
def test_grammars_go_with_beams_and_min_tokens_where_the_pipeline_can(fields):
    for capable in (True, False):
        rig = Rig(capable=capable)
        sampling = asdict(SamplingParams(temperature=0.0, **fields))
        rig.put(Submit(1, "hello", False, None, False, sampling, '{"type": "structural_tag"}'))
        rig.turn()
        reason = "Structured output is not possible" if capable else "structured output cannot be combined"
        assert rig.answer(1).refused[1].startswith(reason)  # the rig has no queue of grammars


# --- repetition_detection


@pytest.mark.parametrize(
    ("text", "asked", "found"),
    [
        ("aaa", (1, 1, 3), True),
        ("aa", (1, 1, 3), False),
        ("xabab", (1, 2, 2), True),
        ("xabab", (1, 1, 2), False),
        ("ababx", (1, 2, 2), False),
        ("xabcabcabc", (2, 3, 3), True),
        ("aabaab", (3, 3, 2), True),
        ("aaaa", (2, 2, 2), True),
        ("aaaa", (3, 9, 2), False),
        ("", (1, 4, 2), False),
    ],
)
def test_a_pattern_counts_at_the_end_of_a_text(text, asked, found):
    assert repeats(list(text), len(text), *asked) is found
    assert repeats([*text, "?"], len(text), *asked) is found


@pytest.mark.parametrize("tokens_per_step", [1, 4, 50])
def test_a_text_that_repeats_itself_ends(tokens_per_step):
    for fields in ({}, {"logprobs": True}):
        rig = Rig(tokens_per_step=tokens_per_step)
        answer = rig.ask("xababab", repetition=(1, 4, 2), **fields)
        assert (answer.text(), answer.reasons) == ("xabab", {0: "repetition"})
        assert len(answer.logprobs[0]) == (5 if fields else 0)
        assert (rig.stats().running, rig.pipeline.busy()) == (0, False)


@pytest.mark.parametrize("tokens_per_step", [1, 50])
def test_other_ends_come_first(tokens_per_step):
    asked = {"repetition": (1, 4, 2), "tokens_per_step": tokens_per_step}

    def ask(prompt, **fields):
        answer = Rig(tokens_per_step=tokens_per_step).ask(prompt, repetition=asked["repetition"], **fields)
        return answer.text(), answer.reasons[0]

    assert ask("xabab", max_tokens=5) == ("xabab", "length")
    assert ask("abc") == ("abc", "stop")
    assert ask("xababab", min_tokens=6) == ("xababa", "repetition")


# --- thinking_token_budget

OPEN, CLOSE = (1,), (8, 9)


def run(state, tokens):
    """What comes out when the model would write these tokens, forced ones in between."""
    out, waiting = [], list(tokens)
    while waiting:
        forced = state.forced
        out.append(waiting.pop(0) if forced is None else forced)
        state.add(out[-1])
    return out


@pytest.mark.parametrize(
    ("budget", "opened", "tokens", "out"),
    [
        (2, False, [5, 1, 6, 6, 7], [5, 1, 6, 6, 8, 9, 7]),
        (2, True, [6, 6, 7], [6, 6, 8, 9, 7]),
        (0, True, [7], [8, 9, 7]),
        (0, False, [5, 1, 7], [5, 1, 8, 9, 7]),
        (3, True, [6, 8, 9, 7, 7, 7, 7], [6, 8, 9, 7, 7, 7, 7]),  # it ends by itself
        (2, True, [6, 8, 7], [6, 8, 9, 7]),  # the budget is spent in the middle of the end
        (3, True, [6, 8, 9, 1, 6, 7], [6, 8, 9, 1, 6, 8, 9, 7]),  # what is left is for a second block
        (9, False, [5, 5], [5, 5]),
    ],
)
def test_the_end_is_forced_when_the_budget_is_spent(budget, opened, tokens, out):
    asked = Thinking(budget, OPEN, CLOSE, opened)
    assert run(ThinkingState(asked, ()), tokens) == out
    for cut in range(len(out)):  # as after a preemption, or in a fork
        assert ThinkingState(asked, out[:cut]).copy().forced in (None, out[cut])


def test_a_model_without_an_end_of_reasoning_refuses_a_budget():
    refused = Rig(capable=True).ask("hello", thinking_token_budget=3).refused
    assert refused[2] == "thinking_token_budget"


def test_progress_of_a_prompt_is_reported_after_each_step_and_at_its_end():
    rig = Rig(capable=True, step_tokens=4)
    ticks = iter(range(1000))
    rig.scheduler.clock = lambda: next(ticks) / 10
    answer = rig.ask("abcdefghij", report_progress=True, n=2, seeds=(1, 2))
    found = [(record.tokens, record.cached) for record in answer.progress]
    assert found == [(4, 0), (8, 0), (10, 0)]
    times = [record.ms for record in answer.progress]
    assert times == sorted(times)
    assert times[0] > 0
    assert set(answer.reasons) == {0, 1}


def test_the_time_of_a_prompt_needs_no_capability_and_does_not_count_the_queue():
    rig = Rig(limits=replace(LIMITS, running=1))
    now = [0.0]
    rig.scheduler.clock = lambda: now[0]
    first, second = rig.submit("a" * 50), rig.submit("abc")
    rig.turn(10)
    now[0] = 100.0
    rig.run()
    assert (rig.answer(first).prefill_ms, rig.answer(second).prefill_ms) == (0.0, 0.0)
    assert rig.answer(second).progress == []


def test_a_prompt_that_is_computed_again_is_reported_once():
    rig = Rig(capable=True)
    request = rig.submit("abcdef", report_progress=True)
    rig.turn(3)
    [sequence] = rig.scheduler.running
    rig.scheduler._abort(sequence)
    rig.scheduler.requeue(sequence)
    rig.run()
    answer = rig.answer(request)
    assert answer.text() == "abcdef"
    assert [record.tokens for record in answer.progress] == [6]
