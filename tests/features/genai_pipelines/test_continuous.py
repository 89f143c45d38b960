"""The worker on the real engine: a client gets what the engine computes by itself, also after failures."""

import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from lean_ovms.config import Config
from lean_ovms.engine.generation import request_validator
from lean_ovms.features.genai_pipelines.child.guard.pipeline import PipelineRequest
from lean_ovms.types import SamplingParams
from tests.engine.real import QUESTIONS, assert_empty, chat, draft_model, load, outcome, quiet
from tests.engine.rig import Rig, queue_limits

pytestmark = pytest.mark.model


# --- prefix caching


def test_a_shared_beginning_changes_no_token(engine, caching):
    system = "<|im_start|>system\nYou are a helpful assistant who answers in one short sentence, always, and is kind."
    prompts = [f"{system}<|im_end|>\n{chat(q)}" for q in QUESTIONS]
    alone = quiet(engine, prompts, max_tokens=25)
    rig = Rig(pipeline=caching)
    requests = [rig.submit(p, max_tokens=25) for p in prompts]
    rig.run()
    assert [outcome(rig, r) for r in requests] == alone
    again = [rig.submit(p, max_tokens=25) for p in prompts]
    rig.run()
    assert [outcome(rig, r) for r in again] == alone


# --- equal to the engine's own generate


def direct(engine, prompt, **fields):
    import openvino as ov
    import openvino_genai as genai

    config = genai.GenerationConfig()
    config.set_eos_token_id(engine._eos)
    config.stop_token_ids = set(engine.info.eos_token_ids)
    for name, value in fields.items():
        setattr(config, name, value)
    tokens = ov.Tensor(np.array([engine.encode(prompt, False)], dtype=np.int64))
    (result,) = engine._pipe.generate([tokens], [config])
    return result.m_generation_ids


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"temperature": 1.5, "top_p": 0.9, "top_k": 30, "min_p": 0.01, "rng_seed": 2**32 - 1},
        {"repetition_penalty": 1.3, "presence_penalty": 0.5, "frequency_penalty": -0.5},
        {"num_beams": 4, "num_return_sequences": 2, "length_penalty": 0.5},
    ],
    ids=["greedy", "sampled", "penalties", "beams"],
)
def test_answers_equal_the_engines_own_generate(engine, fields):
    ours = {"num_beams": "beams", "num_return_sequences": "n"}
    asked = {ours.get(name, name): value for name, value in fields.items()}
    if seed := asked.pop("rng_seed", None):
        asked["seeds"], fields = (seed,), {**fields, "do_sample": True}
    prompt = chat("Count from 1 to 9.")
    expected = direct(engine, prompt, max_new_tokens=30, **fields)
    answer = Rig(pipeline=engine).ask(prompt, max_tokens=30, **asked)
    assert [*answer.tokens.values()] == expected[: fields.get("num_return_sequences", 1)]


def test_prompt_logprobs_come_once_and_are_the_same_in_company(engine):
    prompts = [[40 + (i * i + j) % 999 for i in range(300)] for j in range(3)]
    alone = [Rig(pipeline=engine).ask(p, prompt_logprobs=True, max_tokens=2).prompt_logprobs for p in prompts]
    rig = Rig(pipeline=engine)
    for question in QUESTIONS[:3]:
        rig.submit(chat(question), max_tokens=30)
    rig.turn(3)
    requests = [rig.submit(p, prompt_logprobs=True, max_tokens=2) for p in prompts]
    rig.submit(chat("Hello!"))
    rig.run()
    for request, values in zip(requests, alone, strict=True):
        found = rig.answer(request).prompt_logprobs
        assert (len(found), found[0]) == (300, None)
        assert all(value <= 0 for value in found[1:])
        assert found[1:] == pytest.approx(values[1:], abs=1e-3)


# --- assisted pipelines


def test_a_draft_model_with_many_requests_duplicates_no_first_token(engine):
    """GenAI duplicates tokens if a prompt is divided over steps next to other requests, so none is divided here."""
    prompts = [chat(q) + "Well, " * 20 for q in QUESTIONS * 2]
    alone = quiet(engine, prompts, max_tokens=20)
    options = {"draft_model_path": draft_model(), "max_num_batched_tokens": 64, "enable_prefix_caching": True}
    rig = Rig(pipeline=load(**options))
    for _ in range(3):  # seen again, an answer would end at once beside other requests
        requests = []
        for prompt in prompts:
            requests.append(rig.submit(prompt, max_tokens=20))
            rig.turn()
        rig.run()
        assert [outcome(rig, r) for r in requests] == alone
        assert_empty(rig)


@pytest.mark.parametrize("speculative", ["draft", "prompt_lookup"])
def test_assisted_pipelines_stay_within_a_small_cache(speculative):
    """These pipelines write several tokens ahead, and exceed max_new_tokens."""
    options = {"prompt_lookup": True} if speculative == "prompt_lookup" else {"draft_model_path": draft_model()}
    rig = Rig(pipeline=load(blocks=16, **options))
    requests = [rig.submit(chat(q), ignore_eos=True, max_tokens=140) for q in QUESTIONS[:5]]
    rig.run()
    assert [len(rig.answer(r).tokens[0]) for r in requests] == [140] * 5
    whole = rig.ask(chat("Hello!"), ignore_eos=True)
    assert whole.reasons == {0: "length"}
    assert rig.stats().recoveries == 0
    assert_empty(rig)


# --- the configuration that reaches the binding


def configuration(engine, **sampling):
    asked = SamplingParams(**{"temperature": 0.0, **sampling})
    return engine._config(
        PipelineRequest(tokens=[1], sampling=asked, max_tokens=7, min_tokens=2, seed=9, stops=frozenset({2, 5}))
    )


def test_nothing_dangerous_is_ever_set_in_a_configuration(engine):
    assert configuration(engine, temperature=1e-30).do_sample is False
    assert configuration(engine, temperature=1.0).top_k > 10**6
    assert configuration(engine, temperature=1.0, top_k=4).top_k == 4
    config = configuration(engine, n=4, seeds=(1, 2, 3, 4), temperature=0.5, logprobs=True, num_assistant_tokens=3)
    assert (config.max_new_tokens, config.min_new_tokens, config.rng_seed) == (7, 2, 9)
    assert config.stop_token_ids == {2, 5}
    assert config.num_return_sequences == 1
    assert config.num_beam_groups == 1
    assert not config.stop_strings
    assert config.logprobs == 1
    assert config.tree_depth == 0
    assert not config.num_assistant_tokens
    assert not config.assistant_confidence_threshold
    assert not config.max_ngram_size
    assert config.echo is False
    assert config.adapters is None
    assert config.structured_output_config is None


@pytest.mark.parametrize(
    "sampling",
    [
        {"temperature": 100.0, "top_p": 1e-9, "seeds": (0,)},
        {"temperature": 1.0, "min_p": 0.999999},
        {"repetition_penalty": 100.0},
        {"presence_penalty": -2.0, "frequency_penalty": 2.0},
        {"min_tokens": 5, "max_tokens": 5, "stop_token_ids": (0, 2047)},
        {"beams": 20, "n": 20, "length_penalty": -100.0, "max_tokens": 3},
        {"stop_token_ids": tuple(range(2048))},
    ],
)
def test_values_at_the_edges_of_their_ranges_are_computed(engine, sampling):
    rig = Rig(pipeline=engine, limits=queue_limits(9), running=9)
    answer = rig.ask(chat("Hello!"), **{"max_tokens": 8, **sampling})
    assert answer.reasons[0] in ("stop", "length")
    assert rig.stats().recoveries == 0


def test_neither_telemetry_nor_the_converter_of_tokenizers_is_imported():
    code = f"""
import lean_ovms.features.genai_pipelines.child.continuous, openvino_genai, sys
openvino_genai.Tokenizer({str(Config().model_dir)!r})
print(sys.modules["openvino_telemetry"], "openvino_tokenizers.convert_tokenizer" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "None False"


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
from lean_ovms.errors import EngineLost
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
