"""Decoding with gated delta rules as products (delta_steps), compared with the rule itself and openvino's operation."""

import random

import numpy as np
import pytest

from lean_ovms.engine.paged import model_inputs
from lean_ovms.engine.paged.network import has_states
from lean_ovms.features.hybrid_chunks.child.delta_steps import LEAST_GATE, Sizes, _part
from lean_ovms.features.hybrid_chunks.child.exact import exact
from tests.engine.paged.test_zoo import VOCAB, unpacked
from tests.engine.real import load
from tests.engine.rig import Rig

pytestmark = [pytest.mark.model, pytest.mark.slow]


@pytest.mark.parametrize(("hint", "gate"), [("f32", 0.0), ("bf16", -0.001), ("bf16", -3.0), ("bf16", -1000.0)])
def test_a_token_is_computed_as_the_rule_says(gate, hint):
    """The rule is computed in float64, head by head. A decay of 0 counts as LEAST_GATE."""
    import openvino as ov

    draw, (sequences, key_heads, heads, key_size, size) = np.random.default_rng(7), (3, 2, 4, 8, 16)
    shapes = [(key_heads, key_size), (key_heads, key_size), (heads, size), (heads, size, key_size)]
    query, key, value, state = (draw.normal(size=(sequences, *shape)) for shape in shapes)
    gates, betas = np.full((sequences, heads), gate), draw.uniform(size=(sequences, heads))
    network = exact(_part(Sizes(key_heads, heads, key_size, size, 1e-6, 1e-6)))
    given = [np.ascontiguousarray(each, np.float32) for each in (query, key, value, gates, betas, state)]
    seen, share, after = ov.Core().compile_model(network, "CPU", {"INFERENCE_PRECISION_HINT": hint})(given).values()
    for sequence, head in np.ndindex(sequences, heads):
        q, k = (each[sequence, head // 2] / np.linalg.norm(each[sequence, head // 2]) for each in (query, key))
        left = state[sequence, head] * np.exp(max(gate, LEAST_GATE))
        wanted = left + np.outer((value[sequence, head] - left @ k) * betas[sequence, head], k)
        assert after[sequence, head] == pytest.approx(wanted, abs=1e-5)
        outputs = seen[sequence, head] + share[sequence, head] * value[sequence, head]
        assert outputs == pytest.approx(wanted @ q / key_size**0.5, abs=1e-5)


def test_sequences_beyond_the_most_that_are_computed_as_products_have_their_tokens(tmp_path, monkeypatch):
    """openvino's operation computes these in the same step."""
    pipe, dice = load(pipeline_type="PAGED", model_path=unpacked("qwen3_next", tmp_path), blocks=60), random.Random(5)
    prompts = [[dice.randrange(3, VOCAB) for _ in range(length)] for length in (5, 17, 70, 31)]
    found = []
    for most in (0, 1, 3, 16):
        monkeypatch.setattr(model_inputs, "MOST_STEPS", most)
        rig = Rig(pipeline=pipe)
        numbers = [rig.submit(prompt, max_tokens=20, ignore_eos=True) for prompt in prompts]
        rig.run()
        found.append([rig.answer(number).tokens for number in numbers])
    assert found[1:] == found[:1] * 3


def test_states_are_computed_in_their_layers(tmp_path):
    """openvino computes a network's results in the order in which they are listed. If the states came after the
    logits, it would keep the values of all layers."""
    pipe = load(pipeline_type="PAGED", model_path=unpacked("qwen3_5_text", tmp_path), blocks=20)
    for compiled, _ in pipe.runner._network._compiled:
        kinds = [has_states(output.get_names()) for output in compiled.outputs]
        assert kinds == sorted(kinds, reverse=True)
        assert kinds[-2:] == [True, False]
