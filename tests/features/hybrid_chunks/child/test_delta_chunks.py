"""Prompts of hybrid models in chunks (delta_chunks), compared with openvino's own operation, which computes token by
token."""

import json
import random
from functools import cache

import numpy as np
import pytest

from lean_ovms.engine.paged.network import CHUNK
from lean_ovms.features.hybrid_chunks.child import networks
from lean_ovms.features.hybrid_chunks.child.delta_chunks import Sizes, _part, compute_in_chunks
from lean_ovms.features.hybrid_chunks.child.prompt_chunks import first_size, in_branch
from tests.engine.paged.test_zoo import VOCAB, unpacked
from tests.engine.real import EXACT, load
from tests.engine.rig import Rig

pytestmark = [pytest.mark.model, pytest.mark.slow]
TOKENS = 250


def loaded(path, hint, edit, **options):
    """Returns a pipeline with a changed network in a given precision."""
    config = {**json.loads(EXACT["plugin_config"]), "INFERENCE_PRECISION_HINT": hint}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(networks, "compute_in_chunks", edit)
        options |= {"plugin_config": json.dumps(config), "kv_cache_precision": hint, "blocks": 60}
        return load(compiled_twice=False, shared=True, pipeline_type="PAGED", model_path=path, **options)


def log_probabilities(path, step_tokens, edit=networks.compute_in_chunks, others=0, hint="f32"):
    """Returns those of a prompt of TOKENS tokens, computed in parts, beside other sequences."""
    pipe = loaded(path, hint, edit, max_num_batched_tokens=step_tokens)
    dice, rig = random.Random(3), Rig(pipeline=pipe)
    prompt = [dice.randrange(3, VOCAB) for _ in range(TOKENS)]
    for length in range(1, others + 1):
        rig.submit(prompt[-30 * length :], max_tokens=20, ignore_eos=True)
        rig.turn()
    number = rig.submit(prompt, max_tokens=1, ignore_eos=True, prompt_logprobs=True)
    rig.run()
    return np.array(rig.answer(number).prompt_logprobs[1:], float)


def by_tokens(network, precision):
    """Leaves a network unchanged."""


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """Returns a function that returns a model's path, and its log probabilities by openvino's own operation."""

    @cache
    def made(name):
        path = unpacked(name, tmp_path_factory.mktemp(name))
        return path, log_probabilities(path, 256, edit=by_tokens)

    return made


@pytest.mark.parametrize(("name", "sizes"), [("qwen3_5_text", (1, 17, 200)), ("qwen3_next", (64,))])
def test_prompts_in_parts_of_any_size_have_the_same_log_probabilities(name, sizes, model):
    path, wanted = model(name)
    for size in sizes:
        assert log_probabilities(path, size) == pytest.approx(wanted, abs=5e-3), size
    assert log_probabilities(path, 256, others=3) == pytest.approx(wanted, abs=5e-3)


class Split:
    """Replaces a convolution; its inputs are queries, keys and values."""

    length = 2

    def __init__(self, size):
        self.size, self.channels = size, 3 * size

    def computed(self, rows, state, length):
        from openvino import opset13 as ops

        cuts = ops.reshape(rows, np.array([1, CHUNK, 3, self.size]), False)
        values = ops.split(cuts, ops.constant(np.int64(2)), 3).outputs()
        return values, ops.multiply(ops.add(state, ops.constant(np.float32(1))), ops.constant(np.float32(1)))


@pytest.mark.parametrize("hint", ["f32", "bf16"])
def test_the_states_behind_each_prompt_of_a_step_are_in_order(hint):
    """There are more prompts than openvino keeps in order if a loop returns its own numbers in bf16."""
    import openvino as ov
    from openvino import opset13 as ops

    size, chunks = 4, 5
    kind = ov.Type.bf16 if hint == "bf16" else ov.Type.f32
    part = _part(Sizes(1, 1, size, size, None, None), Split(size), kind)
    shapes = [(CHUNK, 3 * size), (CHUNK, 1), (CHUNK, 1), (), (), (), (3 * size, 2), (1, size, size)]
    inputs = [ops.parameter([-1, *shape], np.int32 if not shape else np.float32) for shape in shapes]
    values = [*inputs[:6], *(ops.convert(each, kind.to_string()) for each in inputs[6:])]
    values[0] = ops.convert(values[0], kind.to_string())
    results = in_branch(first_size(inputs[4]), part, values, sliced=6, states=2)
    found = [ops.convert(each, "f32").output(0) for each in results]
    network = ov.Core().compile_model(ov.Model(found, inputs), "CPU", {"INFERENCE_PRECISION_HINT": hint})
    floats = [np.zeros((chunks, *shape), np.float32) for shape in shapes]
    floats[6] += np.arange(chunks, dtype=np.float32)[:, None, None]
    floats[7] += np.arange(chunks, dtype=np.float32)[:, None, None, None]
    counts = np.full(chunks, CHUNK, np.int32), np.arange(chunks, dtype=np.int32), np.ones(chunks, np.int32)
    _, rows, states = network([*floats[:3], *counts, *floats[6:]]).values()
    assert rows[:, 0, 0].tolist() == [1, 2, 3, 4, 5]
    assert states[:, 0, 0, 0].tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("decay", [0.0, 3.0])
def test_a_chunk_of_keys_that_are_alike_loses_no_digits(decay):
    """The rule itself is computed in float64, token by token: powers of the chunk's matrix reach 10^18."""
    import openvino as ov

    draw = np.random.default_rng(5)
    size, lines = 4, np.tile(draw.normal(size=4) / 2, (CHUNK, 1))
    keys, queries = lines / np.linalg.norm(lines, axis=1, keepdims=True), draw.normal(size=(CHUNK, size))
    values, state = draw.normal(size=(CHUNK, size)), draw.normal(size=(size, size))
    given = [np.concatenate([queries, keys, values], 1)[None], np.full((1, CHUNK, 1), -decay), np.ones((1, CHUNK, 1))]
    numbers = [np.array([number], np.int32) for number in (CHUNK, 0, 1)]
    shapes = (3 * size, 2), (1, size, size)
    states = [np.zeros((count, *shape)) for count in (1, 1, 0) for shape in shapes]
    states[1][0, 0] = state
    floats = [np.ascontiguousarray(array, np.float32) for array in (*given, *states)]
    network = _part(Sizes(1, 1, size, size, None, None), Split(size), ov.Type.f32)
    part = ov.Core().compile_model(network, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    _, outputs, _, after, _, kept = part([*floats[:3], *numbers, *floats[3:]]).values()
    for at in range(CHUNK):
        state = state * np.exp(-decay)
        state = state + np.outer(values[at] - state @ keys[at], keys[at])
        assert outputs[0, at, 0] == pytest.approx(state @ queries[at] / size**0.5, abs=1e-5)
    assert after[0, 0] == pytest.approx(state, abs=1e-5)
    assert kept == pytest.approx(after)


def test_in_bf16_chunks_are_as_near_to_f32_as_tokens(model):
    path, exact = model("qwen3_5_text")
    by_token, by_chunk = (log_probabilities(path, 256, edit, hint="bf16") for edit in (by_tokens, compute_in_chunks))
    assert np.abs(by_chunk - exact).mean() < 1.1 * np.abs(by_token - exact).mean()
    beside_steps = log_probabilities(path, 256, compute_in_chunks, others=3, hint="bf16")
    assert np.abs(beside_steps - exact).mean() < 1.1 * np.abs(by_token - exact).mean()


def test_in_bf16_short_prompts_beside_an_answer_have_their_own_numbers(tmp_path):
    """Memory of an earlier step may be lost (prompt_chunks.own_memory): numbers were not finite or belonged to other
    prompts, and with real sizes the process crashed. A single token of a prompt may use another expert than in f32.
    """
    path, found = unpacked("qwen3_next", tmp_path), []
    for hint, edit in (("f32", by_tokens), ("bf16", by_tokens), ("bf16", networks.compute_in_chunks)):
        pipe, dice = loaded(path, hint, edit), random.Random(5)
        rig = Rig(pipeline=pipe)
        drawn = [[dice.randrange(3, VOCAB) for _ in range(length)] for length in (40, *range(10, 60, 7)) * 6]
        numbers = []
        for place, prompt in enumerate(drawn):
            if place % 9 == 0:
                rig.run()
                rig.submit(prompt, max_tokens=60, ignore_eos=True)
                for _ in range(5):
                    rig.turn()
            else:
                numbers.append(rig.submit(prompt, max_tokens=1, ignore_eos=True, prompt_logprobs=True))
        rig.run()
        answers = [rig.answer(number) for number in numbers]
        assert not any(answer.failed for answer in answers)
        found.append([np.array(answer.prompt_logprobs[1:], float) for answer in answers])
    exact, by_token, by_chunk = found
    for right, near, chunks in zip(exact, by_token, by_chunk, strict=True):
        assert np.minimum(np.abs(chunks - right), 1).mean() < np.abs(near - right).mean() + 0.1
