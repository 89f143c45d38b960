"""The worker on the real engine: a client gets exactly what the engine computes by itself."""

import subprocess
import sys

import numpy as np
import pytest

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


def test_greedy_equals_the_engines_own_generate(engine):
    for question in QUESTIONS:
        expected = direct(engine, chat(question), max_new_tokens=40)[0]
        answer = Rig(pipeline=engine).ask(chat(question), max_tokens=40)
        assert answer.tokens[0] == expected


def test_seeded_sampling_equals_the_engines_own_generate(engine):
    prompt = chat("Tell me a story.")
    for seed in (1, 2, 2**32 - 1):
        fields = {"do_sample": True, "temperature": 1.5, "top_p": 0.9, "top_k": 30, "min_p": 0.01, "rng_seed": seed}
        expected = direct(engine, prompt, max_new_tokens=40, **fields)[0]
        answer = Rig(pipeline=engine).ask(
            prompt, max_tokens=40, temperature=1.5, top_p=0.9, top_k=30, min_p=0.01, seeds=(seed,)
        )
        assert answer.tokens[0] == expected


def test_penalties_equal_the_engines_own_generate(engine):
    prompt = chat("Count from 1 to 9.")
    fields = {"repetition_penalty": 1.3, "presence_penalty": 0.5, "frequency_penalty": -0.5}
    expected = direct(engine, prompt, max_new_tokens=40, **fields)[0]
    assert Rig(pipeline=engine).ask(prompt, max_tokens=40, **fields).tokens[0] == expected


def test_beam_search_equals_the_engines_own_generate(engine):
    prompt = chat("Tell me a story.")
    expected = direct(engine, prompt, max_new_tokens=20, num_beams=4, num_return_sequences=2, length_penalty=0.5)
    answer = Rig(pipeline=engine).ask(prompt, max_tokens=20, beams=4, n=2, length_penalty=0.5)
    assert [answer.tokens[i] for i in range(2)] == expected[:2]


def test_n_sequences_are_n_single_ones(engine):
    prompt = chat("Tell me a story.")
    answer = Rig(pipeline=engine).ask(prompt, n=3, seeds=(5, 6, 7), temperature=2.0, max_tokens=20)
    for index, seed in enumerate((5, 6, 7)):
        single = Rig(pipeline=engine).ask(prompt, seeds=(seed,), temperature=2.0, max_tokens=20)
        assert answer.tokens[index] == single.tokens[0]


def test_prompt_logprobs_come_once_and_the_prompt_is_stripped(engine):
    plain = Rig(pipeline=engine).ask(chat("Hello!"))
    answer = Rig(pipeline=engine).ask(chat("Hello!"), prompt_logprobs=True)
    assert answer.tokens == plain.tokens
    assert len(answer.prompt_logprobs) == answer.accepted.prompt_tokens
    assert answer.prompt_logprobs[0] is None
    assert all(value <= 0 for value in answer.prompt_logprobs[1:])


def test_prompt_logprobs_are_the_same_in_company(engine):
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
        assert rig.answer(request).prompt_logprobs[1:] == pytest.approx(values[1:], abs=1e-3)


# --- assisted pipelines


def test_a_draft_model_with_many_requests_duplicates_no_first_token(engine):
    """GenAI duplicates tokens if a prompt is divided over steps next to other requests, so none is divided here."""
    prompts = [chat(q) + "Well, " * 20 for q in QUESTIONS * 2]
    alone = quiet(engine, prompts, max_tokens=20)
    rig = Rig(pipeline=load(draft_model_path=draft_model(), max_num_batched_tokens=64))
    requests = [rig.submit(p, max_tokens=20) for p in prompts]
    rig.run()
    assert [outcome(rig, r) for r in requests] == alone
    assert_empty(rig)


@pytest.mark.parametrize("speculative", ["draft", "prompt_lookup"])
def test_prompts_that_were_seen_before_get_the_same_answers_from_assisted_pipelines(engine, speculative):
    """GenAI ends such an answer at once with a draft model, prefix caching and other requests in the batch."""
    options = {"draft": {"draft_model_path": draft_model()}, "prompt_lookup": {"prompt_lookup": True}}[speculative]
    pipe = load(enable_prefix_caching=True, **options)
    prompts = [chat(q) for q in QUESTIONS[:3]] * 3
    alone = quiet(engine, prompts, max_tokens=20)
    for _ in range(4):
        rig = Rig(pipeline=pipe)
        requests = []
        for prompt in prompts:
            requests.append(rig.submit(prompt, max_tokens=20))
            rig.turn()
        rig.run()
        assert [outcome(rig, r) for r in requests] == alone


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
    config = configuration(engine, n=4, seeds=(1, 2, 3, 4), temperature=0.5, logprobs=True, num_assistant_tokens=3)
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


def test_every_configuration_has_a_limit_a_seed_and_all_stop_ids(engine):
    config = configuration(engine, temperature=0.5)
    assert (config.max_new_tokens, config.min_new_tokens, config.rng_seed) == (7, 2, 9)
    assert config.stop_token_ids == {2, 5}


def test_a_temperature_that_divides_to_infinity_is_greedy(engine):
    assert configuration(engine, temperature=1e-30).do_sample is False
    assert Rig(pipeline=engine).ask(chat("Hello!"), temperature=1e-30).reasons == {0: "stop"}


def test_top_k_zero_means_all(engine):
    assert configuration(engine, temperature=1.0).top_k > 10**6
    assert configuration(engine, temperature=1.0, top_k=4).top_k == 4


@pytest.mark.parametrize(
    "sampling",
    [
        {"temperature": 2.0, "seeds": (2**64 - 1,)},
        {"temperature": 100.0, "top_p": 1e-9, "seeds": (0,)},
        {"temperature": 1.0, "min_p": 0.999999},
        {"temperature": 1.0, "top_k": 2**31 - 1},
        {"repetition_penalty": 1e-9},
        {"repetition_penalty": 100.0},
        {"presence_penalty": -2.0, "frequency_penalty": 2.0},
        {"min_tokens": 5, "max_tokens": 5, "stop_token_ids": (0, 2047)},
        {"beams": 20, "n": 20, "length_penalty": -100.0, "max_tokens": 3},
        {"beams": 2, "length_penalty": 100.0, "max_tokens": 3},
        {"stop_token_ids": tuple(range(2048))},
    ],
)
def test_values_at_the_edges_of_their_ranges_are_computed(engine, sampling):
    rig = Rig(pipeline=engine, limits=queue_limits(9), running=9)
    answer = rig.ask(chat("Hello!"), **{"max_tokens": 8, **sampling})
    assert answer.reasons[0] in ("stop", "length")
    assert rig.stats().recoveries == 0


def test_telemetry_is_not_imported():
    code = "import lean_ovms.features.genai_pipelines.child.continuous, sys; print(sys.modules['openvino_telemetry'])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "None"
