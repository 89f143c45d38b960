"""Request fields of the paged engine with the demo model, compared with logits computed without paged attention."""

import json
import math
import random
import re

import numpy as np
import openvino as ov
import pytest

from lean_ovms.config import Config
from lean_ovms.engine.loading import settings
from lean_ovms.types import SamplingParams
from tests.engine.real import EXACT, QUESTIONS, chat, generate, load
from tests.engine.rig import Rig

pytestmark = pytest.mark.model
COUNT = chat("Count from 1 to 9.")
NEAR = 2e-4
"""Differences of log probabilities caused by f32 rounding in two ways of computing attention."""


@pytest.fixture(scope="module")
def paged():
    return load(blocks=600, enable_prefix_caching=True, pipeline_type="PAGED")


@pytest.fixture(scope="module")
def logprobs():
    """Returns a function of tokens that returns the log probabilities [tokens, vocab] after each, by the exported
    stateful model."""
    config = Config(**EXACT)
    properties = dict(settings.resolve(config, 1 << 30).properties)
    compiled = ov.Core().compile_model(str(config.model_dir / "openvino_model.xml"), "CPU", properties)
    request = compiled.create_infer_request()

    def compute(tokens):
        request.reset_state()
        ids = np.array([tokens], np.int64)
        inputs = {
            "input_ids": ids,
            "attention_mask": np.ones_like(ids),
            "position_ids": np.arange(len(tokens))[None],
            "beam_idx": np.zeros(1, np.int32),
        }
        logits = request.infer(inputs)["logits"][0].astype(np.float64)
        logits -= logits.max(axis=-1, keepdims=True)
        return logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))

    return compute


def ask(pipe, prompt, **sampling):
    answer = Rig(pipeline=pipe).ask(prompt, **{"max_tokens": 8, **sampling})
    assert answer.failed is answer.refused is None, answer.failed or answer.refused
    return answer


def text(pipe, answer, index=0):
    return pipe.decode(answer.tokens[index], True)


def assert_scores(records, tokens, wanted):
    """Checks each token's log probability, rank and alternatives against `wanted` [tokens, vocab]."""
    for (logprob, rank, top), token, line in zip(records, tokens, wanted, strict=True):
        assert logprob == pytest.approx(line[token], abs=NEAR)
        if rank is not None:
            assert abs(int((line > line[token]).sum()) + 1 - rank) <= 1 + int((abs(line - line[token]) < NEAR).sum())
        order = np.argsort(-line)[: len(top)]
        assert [value for _, value in top] == pytest.approx(line[order], abs=NEAR)
        assert all(line[other] == pytest.approx(value, abs=NEAR) for other, value in top)


# --- log probabilities


def test_alternatives_are_those_of_the_models_own_logits(paged, logprobs):
    """Sampling parameters and edits of logits do not change what is reported."""
    prompt = paged.encode(COUNT, False)
    for fields in ({}, {"temperature": 1.5, "top_p": 0.9, "seeds": (3,)}, {"logit_bias": ((44, 100.0),)}):
        answer = ask(paged, prompt, logprobs=True, top_logprobs=20, **fields)
        tokens = answer.tokens[0]
        records = zip(answer.logprobs[0], [None] * len(tokens), answer.top[0], strict=True)
        assert_scores(records, tokens, logprobs(prompt + tokens)[len(prompt) - 1 : -1])


def test_every_choice_has_its_own_alternatives(paged, logprobs):
    prompt = paged.encode(COUNT, False)
    answer = ask(paged, prompt, logprobs=True, top_logprobs=2, n=3, seeds=(1, 2, 3), temperature=20.0)
    assert len({tuple(tokens) for tokens in answer.tokens.values()}) == 3
    for index, tokens in answer.tokens.items():
        records = zip(answer.logprobs[index], [None] * len(tokens), answer.top[index], strict=True)
        assert_scores(records, tokens, logprobs(prompt + tokens)[len(prompt) - 1 : -1])


def test_named_tokens_have_their_log_probabilities(paged, logprobs):
    prompt = paged.encode(COUNT, False)
    answer = ask(paged, prompt, logprobs=True, logprob_token_ids=(7, 2000, 3), max_tokens=2)
    lines = logprobs(prompt + answer.tokens[0])[len(prompt) - 1 : -1]
    for top, line in zip(answer.top[0], lines, strict=True):
        assert [token for token, _ in top] == [7, 2000, 3]
        assert [value for _, value in top] == pytest.approx(line[[7, 2000, 3]], abs=NEAR)


def test_a_prompt_is_scored_beside_the_prefix_cache_in_chunks_and_in_company(paged, logprobs):
    dice = random.Random(5)
    shared = [dice.randrange(3, 2000) for _ in range(300)]
    prompts = [shared, [*shared[:290], 5, 6, 7], shared[:40], paged.encode(COUNT, False)]
    rig = Rig(pipeline=paged)
    for prompt in prompts:  # the second is scored although the cache has the first one's blocks
        rig.submit(prompt, max_tokens=3, ignore_eos=True)
    scored = [rig.submit(p, prompt_logprobs=True, prompt_top_logprobs=3, logprobs=True, max_tokens=2) for p in prompts]
    rig.run()
    for prompt, request in zip(prompts, scored, strict=True):
        answer = rig.answer(request)
        assert answer.prompt_logprobs[0] is None
        records = zip(answer.prompt_logprobs[1:], answer.prompt_ranks, answer.prompt_top, strict=True)
        assert_scores(records, prompt[1:], logprobs(prompt)[:-1])
        assert answer.cached == 0  # everything was computed


ITEMS = [
    ("What is the capital of France?", ("Paris", "London", "Berlin", "Rome")),
    ("What is 2 + 3?", ("4", "5", "6", "7")),
    ("What color is the sky?", ("green", "red", "blue", "black")),
    ("Count from 1 to 3.", ("1, 2, 3", "3, 2, 1", "1, 1, 1", "a, b, c")),
    ("Spell the word apple.", ("a-p-p-l-e", "b-a-n-a-n-a", "apple", "e-l-p-p-a")),
]


def test_multiple_choice_scores_are_equal_to_the_last_item(paged, logprobs):
    """lm-evaluation-harness's loglikelihood is the sum over the continuation, and whether greedy decoding generates
    it."""
    rig = Rig(pipeline=paged)
    asked = []
    for question, choices in ITEMS:
        start = paged.encode(chat(question), False)
        for choice in choices:
            tokens = start + paged.encode(choice, False)
            request = rig.submit(
                tokens, logprobs=True, top_logprobs=1, prompt_logprobs=True, prompt_top_logprobs=1, max_tokens=1
            )
            asked.append((request, tokens, len(start)))
    rig.run()
    best, wanted, greedy = [], [], []
    for request, tokens, start in asked:
        answer, lines = rig.answer(request), logprobs(tokens)
        places = range(start, len(tokens))
        score = sum(answer.prompt_logprobs[place] for place in places)
        wanted.append(sum(lines[place - 1][tokens[place]] for place in places))
        assert score == pytest.approx(wanted[-1], abs=NEAR * len(places))
        # The client sees this because the token's own value is the greatest alternative at its position.
        mine = all(answer.prompt_logprobs[p] == answer.prompt_top[p - 1][0][1] for p in places)
        assert mine == all(lines[p - 1].argmax() == tokens[p] for p in places)
        best.append(score)
        greedy.append(mine)
    chosen = np.array(best).reshape(-1, 4).argmax(axis=1).tolist()
    assert chosen == np.array(wanted).reshape(-1, 4).argmax(axis=1).tolist()
    assert len(set(chosen)) > 1
    assert any(greedy)
    assert not all(greedy)


# --- edits of logits


def test_logit_bias_and_allowed_tokens_decide(paged, logprobs):
    prompt = paged.encode(COUNT, False)
    assert set(ask(paged, prompt, logit_bias=((44, 100),)).tokens[0]) == {44}
    banned = ask(paged, prompt).tokens[0][0]
    lines = logprobs(prompt)[-1].copy()
    lines[banned] = -math.inf
    assert ask(paged, prompt, logit_bias=((banned, -100),), max_tokens=1).tokens[0] == [int(lines.argmax())]
    allowed = (40, 41, 50)
    [token] = ask(paged, prompt, allowed_token_ids=allowed, max_tokens=1).tokens[0]
    assert token == max(allowed, key=lambda one: lines[one])


def test_bad_words_are_not_completed_across_tokens(paged):
    plain = text(paged, ask(paged, COUNT, max_tokens=30))
    assert "3, 4" in plain
    without = text(paged, ask(paged, COUNT, max_tokens=30, bad_words=("3, 4", "7")))
    assert "3, 4" not in without
    assert "7" not in without
    assert "3" in without  # only the last token of a word is forbidden, after all others of the word


def test_min_tokens_and_beams_go_with_a_grammar(paged):
    form = {"type": "grammar", "grammar": 'root ::= ("yes" | "no") (" please")*'}
    tag = json.dumps({"type": "structural_tag", "format": form})
    paged.grammars.compile(tag)
    for least, beams in ((6, 1), (4, 3)):
        sampling = SamplingParams(temperature=0.0, beams=beams, n=beams, min_tokens=least)
        ends = frozenset(paged.info.eos_token_ids)
        fields = {"prompt": paged.encode(COUNT, False), "max_tokens": 16, "stops": ends, "constraint": tag}
        [reply] = generate(paged, (sampling, fields))
        assert len(reply.tokens) == beams
        for tokens in reply.tokens.values():
            said = paged.decode(tokens, True)
            assert re.fullmatch("(yes|no)( please)*", said) or len(tokens) == 16
            assert len(tokens) >= least


def test_parameters_that_leave_no_token_are_the_clients_fault(paged):
    rig = Rig(pipeline=paged)
    word = paged.encode("7", False)[0]
    bad = rig.submit(COUNT, allowed_token_ids=(word,), bad_words=("7",))
    good = rig.submit(COUNT, max_tokens=4)
    rig.run()
    kind, message, *_ = rig.answer(bad).failed
    assert (kind, message) == ("BadRequest", "the request allows no further token")
    assert rig.answer(good).reasons == {0: "length"}


# --- ends


def test_a_text_that_repeats_itself_ends(paged):
    answer = ask(paged, COUNT, logit_bias=((44, 100),), repetition=(1, 3, 4), max_tokens=30, logprobs=True)
    assert (answer.tokens[0], answer.reasons[0]) == ([44] * 4, "repetition")
    assert len(answer.logprobs[0]) == 4
    assert ask(paged, COUNT, repetition=(1, 3, 4), max_tokens=30).reasons[0] == "stop"


def test_the_end_of_reasoning_is_forced_when_its_budget_is_spent(paged):
    start, end = paged.encode("1", False), paged.encode(", 9.", False)
    for fields in (
        {"thinking_tags": ("1", ", 9."), "thinking_token_budget": 3},
        {"thinking_tags": ("<no>", ", 9."), "thinking_token_budget": 4, "thinking_open": True},
    ):
        tokens = ask(paged, COUNT, max_tokens=20, **fields).tokens[0]
        assert tokens[:1] == start
        assert tokens[4 : 4 + len(end)] == end
    free = ask(paged, COUNT, max_tokens=20).tokens[0]
    fields = {"thinking_tags": ("1", ", 9."), "thinking_token_budget": 50}
    assert ask(paged, COUNT, max_tokens=20, **fields).tokens[0] == free


# --- the prefix cache


def test_a_salt_separates_caches_and_cached_tokens_are_exact(paged):
    prompt = [100 + place % 50 for place in range(100)]
    first, again = (ask(paged, prompt, cache_salt="mine").cached for _ in range(2))
    assert (first, again) == (0, 96)
    assert ask(paged, prompt, cache_salt="yours").cached == 0
    assert ask(paged, prompt).cached == 0
    assert ask(paged, prompt[:70], cache_salt="mine").cached == 64
    assert ask(paged, [*prompt[:40], 3, 4], cache_salt="yours").cached == 32


@pytest.mark.parametrize("caching", [True, False])
def test_the_choices_of_a_request_share_the_blocks_of_its_prompt(paged, monkeypatch, caching):
    monkeypatch.setattr(paged.scheduler.prefixes, "caching", caching)
    dice = random.Random(9 + caching)
    prompt = [dice.randrange(3, 2000) for _ in range(330)]
    blocks = paged.blocks
    rig = Rig(pipeline=paged)
    request = rig.submit(prompt, n=4, seeds=(1, 2, 3, 4), temperature=1.0, max_tokens=20, ignore_eos=True)
    while len(rig.answer(request).tokens) < 4:
        rig.turn()
    assert blocks.total - blocks.available == 10 + 4  # ten full blocks are shared, and each text has one of its own
    rig.run()
    assert blocks.available == blocks.total


def test_a_seed_gives_the_same_text_whatever_else_runs(paged):
    hot = {"temperature": 1.0, "top_p": 0.95, "seeds": (77,), "max_tokens": 20}
    alone = ask(paged, COUNT, **hot).tokens
    rig = Rig(pipeline=paged)
    for number, question in enumerate(QUESTIONS):
        rig.submit(chat(question), temperature=1.0, seeds=(number,), top_k=number, max_tokens=30)
    rig.turn(3)
    request = rig.submit(COUNT, **hot, n=1)
    rig.run()
    assert rig.answer(request).tokens == alone
    several = ask(paged, COUNT, **hot | {"n": 3, "seeds": (5, 77, 6)})
    assert several.tokens[1] == alone[0]


@pytest.mark.parametrize("stopping", [True, False, "never"])
def test_beam_search_ends_as_asked(paged, stopping):
    answer = ask(paged, COUNT, beams=3, n=3, early_stopping=stopping, max_tokens=30)
    assert set(answer.reasons) == {0, 1, 2}
    assert text(paged, answer).startswith("1, 2, 3")


def test_genai_refuses_what_it_cannot_do(engine):
    for fields in ({"top_logprobs": 1, "logprobs": True}, {"logit_bias": ((1, 1),)}, {"cache_salt": "x"}):
        name = next(iter(fields))
        refused = Rig(pipeline=engine).ask(COUNT, **fields).refused
        assert refused[1] == f"{name} is not supported by this model's pipeline"
        assert refused[2] == name
