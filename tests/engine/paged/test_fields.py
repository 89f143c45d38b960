"""Request fields of the paged engine with the demo model, compared with logits computed without paged attention."""

import json
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


# --- the prefix cache
