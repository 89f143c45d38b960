"""Gemma 3 270M as a GGUF file: one key head, sliding windows of 512 tokens, two frequencies of positions."""

import math
from pathlib import Path

import numpy as np
import pytest

from tests.engine.real import load
from tests.engine.rig import Rig

TEXT = Path(__file__).parents[1] / "data" / "real" / "english.txt"
TOKENS = 1500
LOSSES = [4.4613, 3.8603, 3.3242]
"""The mean loss of a token in each third of the text, from transformers in torch with the file's weights in f32."""


def test_a_text_is_predicted_as_well_as_by_torch(gemma3):
    engine = load(blocks=100, pipeline_type="PAGED", model_path=str(gemma3), kv_cache_precision="", plugin_config="")
    ids = engine.encode(TEXT.read_text("utf-8"), True)[:TOKENS]
    losses = -np.array(Rig(pipeline=engine).ask(ids, max_tokens=1, prompt_logprobs=True).prompt_logprobs[1:])
    assert len(losses) == TOKENS - 1
    thirds = [float(losses[start : start + TOKENS // 3].mean()) for start in range(0, TOKENS - 1, TOKENS // 3)]
    assert thirds == pytest.approx(LOSSES, abs=0.03)
    assert float(losses.mean()) == pytest.approx(3.8823, abs=math.log(1.01))
