"""Fields of requests: their checks, and those that only the paged engine supports, on a scripted network."""

from dataclasses import asdict, replace
from dataclasses import fields as fields_of

import numpy as np
import pytest

from lean_ovms.engine.generation import request_validator
from lean_ovms.engine.generation.fair_queue import repeats
from lean_ovms.engine.paged.parts import NoGrammars
from lean_ovms.engine.paged.sampling.logit_state import Thinking, ThinkingState
from lean_ovms.engine.protocol import Submit
from lean_ovms.errors import BadRequest
from lean_ovms.features.scripted_engine.child.network import ScriptedNetwork
from lean_ovms.types import SamplingParams
from lean_ovms.types.engine import CAPABILITIES
from tests import in_range
from tests.engine.rig import Rig, guarded, scripted
from tests.features.genai_pipelines.guard.fake_pipeline import FakePipeline, Script

LINES = ScriptedNetwork(0).lines
LOOKUP = {"speculative": "prompt_lookup"}
VALUES = {
    "top_logprobs": 2,
    "logprob_token_ids": (5,),
    "prompt_top_logprobs": 1,
    "logit_bias": ((5, 1.0),),
    "sampler_chain": {"samplers": []},
    "allowed_token_ids": (5,),
    "bad_words": ("x",),
    "thinking_token_budget": 4,
    "early_stopping": True,
    "cache_salt": "mine",
    "lora": ((0, 1.0),),
    "report_progress": True,
    "speaker": "ada",
}


@pytest.mark.parametrize("name", CAPABILITIES)
def test_a_pipeline_without_the_capability_refuses_the_field(name):
    refused = Rig(FakePipeline()).ask("hello", **{name: VALUES[name]}).refused
    assert refused[1:3] == [f"{name} is not supported by this model's pipeline", name]
    fields = {name: VALUES[name], "thinking_open": True, "thinking_tags": ("<a>", "</a>")}
    rig = Rig()
    rig.backend.info = replace(rig.backend.info, capabilities=[*CAPABILITIES.values()])
    assert rig.ask("hello", logprobs=True, max_tokens=9, **fields).refused is None


def scripted_logprobs(token, ids):
    """Returns the log probabilities of these ids at a position where the script generates a token."""
    line = LINES[token].astype(float)
    return pytest.approx([line[i] - np.log(np.exp(line).sum()) for i in ids], abs=1e-5)


def assert_alternatives(top, token, most):
    """Checks the alternatives at a position where the script generates a token: the token itself, and those that
    follow it."""
    assert [i for i, _ in top] == [token + place for place in range(most)]
    assert [value for _, value in top] == scripted_logprobs(token, [i for i, _ in top])


@pytest.mark.parametrize("speculative", ["", "prompt_lookup"])
def test_every_token_has_its_alternatives_up_to_the_end(speculative):
    rig = Rig(speculative=speculative)
    answer = rig.ask("abcdefabcdefabcdef", logprobs=True, top_logprobs=2, max_tokens=17)
    assert answer.text() == "abcdefabcdefabcde"
    assert rig.stats().steps < 17 or not speculative
    for token, top in zip(b"abcdefabcdefabcde", answer.top[0], strict=True):
        assert_alternatives(top, token, 2)
    named = Rig().ask("ab", logprobs=True, logprob_token_ids=(9, 7))
    assert [[i for i, _ in top] for top in named.top[0]] == [[9, 7]] * 3


def test_genais_beams_have_no_log_probabilities_of_the_prompt():
    refused = Rig(FakePipeline()).ask("abc", prompt_logprobs=True, logprobs=True, beams=3).refused
    assert "combined with beam search" in refused[1]


def test_cached_tokens_are_counted_where_they_are_known():
    rig = Rig(prefix_caching=True, block_size=4)
    assert rig.ask("hello world").cached == 0
    assert rig.ask("hello world", n=2, seeds=(1, 2), temperature=1.0).cached == 8
    assert Rig(FakePipeline(Script(prefix_caching=True))).ask("hello").cached is None


@pytest.mark.parametrize(("blank", "found"), [([301], ((8,), (301,))), ([231, 8], ((8,),)), ([8], ((8,),))])
def test_a_bad_word_is_forbidden_after_a_blank_too_unless_that_is_a_token_of_its_own(blank, found):
    rig = Rig()
    texts = {"the": [8], " the": blank}
    encode = lambda text, special: texts[text]  # noqa: E731
    assert rig.task.validator.bad_words(("the",), encode) == found
    assert rig.task.validator.bad_words((" the",), encode) == found


def test_forbidden_tokens_are_left_out():
    """The next of the script's alternatives is generated instead."""
    rig = Rig()
    assert rig.ask("abx", bad_words=("bx", "zz")).text() == "aby"
    assert rig.ask("abx", logit_bias=((ord("a"), -100),)).text() == "bbx"
    assert rig.ask("abx", allowed_token_ids=(ord("b"), ord("c")), max_tokens=2).text() == "bb"


@pytest.mark.parametrize("fields", [{"min_tokens": 2}, {"beams": 2}])
@pytest.mark.parametrize("paged", [True, False])
def test_grammars_go_with_beams_and_min_tokens_where_the_engine_can(fields, paged):
    backend = scripted() if paged else guarded(FakePipeline())
    backend.grammars = NoGrammars()  # what is refused for another reason is refused before
    rig = Rig(backend)
    sampling = asdict(SamplingParams(temperature=0.0, **fields))
    rig.put(Submit(1, "hello", False, None, False, sampling, '{"type": "structural_tag"}'))
    rig.turn()
    reason = "structured output is not supported" if paged else "structured output cannot be combined"
    assert rig.answer(1).refused[1].startswith(reason)


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


KINDS = [{}, LOOKUP, *({"tokens_per_step": tokens} for tokens in (1, 4))]


def make(options):
    """Returns the fake of openvino_genai's pipeline if a number of tokens per step is given, else the scripted
    engine."""
    return Rig(FakePipeline(Script(**options))) if "tokens_per_step" in options else Rig(**options)


@pytest.mark.parametrize("options", KINDS)
def test_a_text_that_repeats_itself_ends(options):
    for fields in ({}, {"logprobs": True}):
        rig = make(options)
        answer = rig.ask("xababab", repetition=(1, 4, 2), **fields)
        assert (answer.text(), answer.reasons) == ("xabab", {0: "repetition"})
        assert len(answer.logprobs[0]) == (5 if fields else 0)
        assert (rig.stats().running, rig.backend.idle) == (0, True)


@pytest.mark.parametrize("options", KINDS)
def test_other_ends_come_first(options):
    def ask(prompt, **fields):
        answer = make(options).ask(prompt, repetition=(1, 4, 2), **fields)
        return answer.text(), answer.reasons[0]

    assert ask("xabab", max_tokens=5) == ("xabab", "length")
    assert ask("abc") == ("abc", "stop")
    assert ask("xababab", min_tokens=6) == ("xababa", "repetition")


# --- thinking_token_budget

OPEN, CLOSE = (1,), (8, 9)


def run(state, tokens):
    """Returns the output if the model generates these tokens, with forced ones in between."""
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
        (3, True, [6, 8, 9, 7, 7, 7, 7], [6, 8, 9, 7, 7, 7, 7]),  # the thinking ends by itself
        (2, True, [6, 8, 7], [6, 8, 9, 7]),  # the budget is used up in the middle of the end
        (3, True, [6, 8, 9, 1, 6, 7], [6, 8, 9, 1, 6, 8, 9, 7]),  # the rest is for a second block
        (9, False, [5, 5], [5, 5]),
    ],
)
def test_the_end_is_forced_when_the_budget_is_spent(budget, opened, tokens, out):
    asked = Thinking(budget, OPEN, CLOSE, opened)
    assert run(ThinkingState(asked, ()), tokens) == out
    for cut in range(len(out)):  # as after a preemption, or in a fork
        assert ThinkingState(asked, out[:cut]).copy().forced in (None, out[cut])


def test_a_model_without_an_end_of_reasoning_refuses_a_budget():
    refused = Rig().ask("hello", thinking_token_budget=3).refused
    assert refused[2] == "thinking_token_budget"


def test_progress_of_a_prompt_is_reported_after_each_step_and_at_its_end():
    rig = Rig(step_tokens=4)
    ticks = iter(range(1000))
    rig.scheduler.waiting.clock = lambda: next(ticks) / 10
    answer = rig.ask("abcdefghij", report_progress=True, n=2, seeds=(1, 2))
    found = [(record.tokens, record.cached) for record in answer.progress]
    assert found == [(4, 0), (8, 0), (10, 0)]
    times = [record.ms for record in answer.progress]
    assert times == sorted(times)
    assert times[0] > 0
    assert set(answer.reasons) == {0, 1}


@pytest.mark.usefixtures("each_backend")
def test_the_time_of_a_prompt_needs_no_capability_and_does_not_count_the_queue():
    rig = Rig(running=1)
    now = [0.0]
    rig.scheduler.waiting.clock = lambda: now[0]
    first, second = rig.submit("a" * 50), rig.submit("abc")
    rig.turn(10)
    now[0] = 100.0
    rig.run()
    assert (rig.answer(first).prefill_ms, rig.answer(second).prefill_ms) == (0.0, 0.0)
    assert rig.answer(second).progress == []


VOCAB = 1000


def look(**changes):
    return request_validator.read_sampling({**asdict(SamplingParams()), **changes}, VOCAB)


def test_the_defaults_pass_unchanged_and_are_complete():
    assert look() == SamplingParams()
    in_range.assert_complete(look())


def test_lists_from_json_become_tuples():
    asked = look(n=2, seeds=[1, 2], stop_token_ids=[5], logit_bias=[[5, 1.5]], repetition=[1, 2, 3])
    assert (asked.seeds, asked.stop_token_ids) == ((1, 2), (5,))
    assert (asked.logit_bias, asked.repetition) == (((5, 1.5),), (1, 2, 3))


def test_missing_fields_have_their_defaults():
    assert request_validator.read_sampling({"max_tokens": 4}, VOCAB) == SamplingParams(max_tokens=4)


@pytest.mark.parametrize("field", fields_of(SamplingParams), ids=lambda field: field.name)
def test_no_field_is_complete_with_a_value_of_another_type(field):
    with pytest.raises((AssertionError, TypeError)):
        in_range.assert_complete(look(**{field.name: object()}))


@pytest.mark.parametrize("name", [*request_validator.TOKENS, "logit_bias"])
@pytest.mark.parametrize("ids", [[-1], [VOCAB], [10**30], [1, 2, VOCAB]])
def test_ids_lie_in_the_vocabulary(name, ids):
    with pytest.raises(BadRequest, match=rf"{name}: {ids[-1]} is not a token id in \[0, {VOCAB}\)") as caught:
        look(**{name: [[token, 1.0] for token in ids] if name == "logit_bias" else ids})
    assert caught.value.param == name


@pytest.mark.parametrize("tokens", [[0], [VOCAB - 1], [], list(range(VOCAB))])
def test_ids_in_the_vocabulary_pass(tokens):
    request_validator.check_token_ids(tokens, VOCAB, "prompt")


@pytest.mark.parametrize(("tokens", "wrong"), [([VOCAB], VOCAB), ([1, -1], -1), ([1, 2, 10**30, -1], 10**30)])
def test_the_first_bad_id_of_a_prompt_is_in_the_error(tokens, wrong):
    with pytest.raises(BadRequest) as caught:
        request_validator.check_token_ids(tokens, VOCAB, "prompt")
    assert caught.value.message == f"prompt: {wrong} is not a token id in [0, {VOCAB})"
