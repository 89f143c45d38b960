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
from tests.engine.real import EXACT, chat, generate, load
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


# --- ends


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
