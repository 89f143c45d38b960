"""Scheduler and recovery on the real engine: failing steps, a full cache, many requests, unusual settings."""

import random
import subprocess
import sys
from pathlib import Path

import pytest

from lean_ovms.engine.generation import request_validator
from tests.engine.real import QUESTIONS, assert_empty, chat, load, outcome, quiet
from tests.engine.rig import Rig, queue_limits

pytestmark = pytest.mark.model


# --- one bad request does not harm others


# --- the KV cache


def test_beam_searches_with_a_small_cache_all_finish(engine, small):
    prompts = [chat(q) for q in QUESTIONS[:4]]
    sampling = {"beams": 3, "n": 2, "max_tokens": 20}
    alone = quiet(engine, prompts, **sampling)
    rig = Rig(pipeline=small)
    requests = [rig.submit(p, **sampling) for p in prompts]
    rig.run()
    assert [outcome(rig, r) for r in requests] == alone
    assert_empty(rig)


@pytest.mark.parametrize("steps", [1, 4])
def test_many_prompts_that_are_cancelled_at_once_do_not_spoil_the_prefix_cache(engine, caching, steps):
    """Other sequences decode, so that chunks do not end at the end of a block. GenAI takes the last block for a full
    one. Only the first unfinished prompt has begun. If another had, its prompt would be wrong from now on."""
    dice = random.Random(f"many {steps}")
    prompts = [[dice.randrange(300, 1900) for _ in range(dice.choice([90, 150, 400]))] for _ in range(6)]
    asked = {"max_tokens": 3, "ignore_eos": True, "logprobs": True}
    rig = Rig(pipeline=caching)
    for question in QUESTIONS[:2]:
        rig.submit(chat(question), max_tokens=40, ignore_eos=True)
    rig.turn(3)
    requests = [rig.submit(prompt, **asked) for prompt in prompts]
    rig.turn(steps)
    for request in dice.sample(requests, len(requests)):
        rig.cancel(request)
    rig.run()
    for prompt in prompts:
        alone, again = (Rig(pipeline=pipeline).ask(prompt, **asked) for pipeline in (engine, caching))
        assert again.tokens == alone.tokens
        assert again.logprobs[0] == pytest.approx(alone.logprobs[0], abs=1e-3)


def test_a_step_that_fails_half_way_through_a_prompt_does_not_spoil_the_prefix_cache(engine, caching, monkeypatch):
    """The step fails while it samples, after it has computed tokens in the block in which the last chunk ended."""
    prompt = [random.Random(11).randrange(300, 1900) for _ in range(600)]
    asked = {"max_tokens": 3, "ignore_eos": True, "logprobs": True}
    alone = Rig(pipeline=engine).ask(prompt, **asked)
    rig = Rig(pipeline=caching)
    monkeypatch.setattr(request_validator, "check_token_ids", lambda *a: None)
    for question in QUESTIONS[:3]:
        rig.submit(chat(question), max_tokens=40, ignore_eos=True)
    rig.turn(3)
    rig.submit(prompt, **asked)
    rig.turn(1)
    rig.submit([5, 6, 10**6], repetition_penalty=1.5)
    rig.run()
    later = rig.submit(prompt, **asked)
    rig.run()
    assert rig.stats().recoveries
    assert rig.answer(later).tokens == alone.tokens
    assert rig.answer(later).logprobs[0] == pytest.approx(alone.logprobs[0], abs=1e-4)


# --- a crowd


def test_a_crowd_of_which_a_third_leaves_is_served_exactly_and_leaves_nothing(engine):
    dice = random.Random(5)
    prompts = [chat(dice.choice(QUESTIONS)) * dice.randrange(1, 6) for _ in range(32)]
    limits = [dice.randrange(1, 40) for _ in prompts]
    leaves = {i: dice.randrange(1, 20) for i in dice.sample(range(32), 11)}
    alone = {
        (prompt, limit): Rig(pipeline=engine).ask(prompt, max_tokens=limit, ignore_eos=True).tokens[0]
        for i, (prompt, limit) in enumerate(zip(prompts, limits, strict=True))
        if i not in leaves
    }
    rig = Rig(pipeline=engine, limits=queue_limits(99), running=12)
    requests = []
    for prompt, limit in zip(prompts, limits, strict=True):
        requests.append(rig.submit(prompt, max_tokens=limit, ignore_eos=True))
        if dice.random() < 0.5:
            rig.turn()
            for i, turns in leaves.items():
                if i < len(requests) - turns:
                    rig.cancel(requests[i])
    for i in leaves:
        rig.cancel(requests[i])
    rig.run()
    for i, request in enumerate(requests):
        if i not in leaves:
            assert rig.answer(request).tokens[0] == alone[prompts[i], limits[i]]
    assert rig.stats().recoveries == 0
    assert_empty(rig)


LOST = """
import os
from lean_ovms.engine.generation import request_validator
from lean_ovms.engine.errors import EngineLost
from tests.engine.real import chat, draft_model, load
from tests.engine.rig import Rig
rig = Rig(pipeline=load(draft_model_path=draft_model()))
request_validator.check_token_ids = lambda *a: None
ids = [rig.submit(chat("Hello!")), rig.submit([10**6], repetition_penalty=1.5)]
try:
    rig.worker.run()
except EngineLost:
    print(*(rig.answer(i).failed[0] for i in ids), flush=True)
os._exit(0)
"""


def test_a_draft_pipeline_that_failed_is_given_up_and_all_get_the_error():
    """GenAI then fails in all later steps, even after all requests are cancelled, and may crash when it is
    destroyed."""
    root = Path(__file__).parents[3]
    command = [sys.executable, "-c", LOST]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["EngineFailure", "EngineFailure"]


@pytest.mark.parametrize(
    "options", [{"max_num_batched_tokens": 1, "max_num_seqs": 1}, {"max_model_len": 12}, {"cache_size": 1}]
)
def test_small_and_odd_settings_work(engine, options):
    blocks = 0 if "cache_size" in options else 64
    rig = Rig(pipeline=load(blocks=blocks, **options))
    prompts = [chat("Hello!"), chat("What is 2 + 3?")[-30:], "Hi"]
    requests = [rig.submit(p, max_tokens=2) for p in prompts]
    rig.run()
    alone = quiet(engine, prompts, max_tokens=2)
    for request, expected in zip(requests, alone, strict=True):
        assert outcome(rig, request) == expected or rig.answer(request).refused[3] == "context_length_exceeded"
    assert any(rig.answer(r).reasons for r in requests)
    assert rig.stats().kv_blocks_total == (blocks or 13107)
    assert rig.stats().recoveries == 0
    assert_empty(rig)
