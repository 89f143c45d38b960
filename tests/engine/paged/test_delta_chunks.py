"""Prompts of hybrids by chunks (delta_chunks), against openvino's own operation, which computes token by token."""

import json
import random

import numpy as np
import pytest

from lean_ovms.engine.paged import model
from lean_ovms.engine.paged.delta_chunks import compute_in_chunks
from tests.engine.paged.test_zoo import VOCAB, unpacked
from tests.engine.real import EXACT, load
from tests.engine.rig import Rig

pytestmark = [pytest.mark.model, pytest.mark.slow]
TOKENS = 250


def log_probabilities(path, step_tokens, edit=compute_in_chunks, others=0):
    """Those of a prompt of TOKENS tokens, computed in parts of so many tokens, beside other sequences."""
    config = {**json.loads(EXACT["plugin_config"]), "INFERENCE_PRECISION_HINT": "f32"}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(model, "compute_in_chunks", edit)
        options = {"max_num_batched_tokens": step_tokens, "plugin_config": json.dumps(config), "blocks": 60}
        pipe = load(pipeline_type="PAGED", model_path=path, enable_prefix_caching=False, **options)
    dice, rig = random.Random(3), Rig(pipeline=pipe)
    prompt = [dice.randrange(3, VOCAB) for _ in range(TOKENS)]
    for length in range(1, others + 1):
        rig.submit(prompt[-30 * length :], max_tokens=20, ignore_eos=True)
        rig.turn()
    number = rig.submit(prompt, max_tokens=1, ignore_eos=True, prompt_logprobs=True)
    rig.run()
    return np.array(rig.answer(number).prompt_logprobs[1:], float)


def by_tokens(network, precision):
    """Leaves a network as it is."""


@pytest.mark.parametrize(("name", "sizes"), [("qwen3_5_text", (1, 17, 64, 200, 2000)), ("qwen3_next", (64,))])
def test_prompts_in_parts_of_any_size_have_the_same_log_probabilities(name, sizes, tmp_path):
    path = unpacked(name, tmp_path)
    wanted = log_probabilities(path, 256, edit=by_tokens)
    for size in sizes:
        assert log_probabilities(path, size) == pytest.approx(wanted, abs=5e-3), size
    assert log_probabilities(path, 256, others=3) == pytest.approx(wanted, abs=5e-3)
