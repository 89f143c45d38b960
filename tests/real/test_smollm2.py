"""SmolLM2-135M-Instruct as a GGUF file: how well it predicts an English text, and that a long answer stays a text."""

import json
import math
from pathlib import Path

import numpy as np
import pytest

from tests.engine.real import chat, load
from tests.engine.rig import Rig

TEXT = Path(__file__).parents[1] / "data" / "real" / "english.txt"
TOKENS, QUARTER = 1798, 450
LOSS = 3.8712
"""The mean loss of a token of the text behind the first, by transformers in torch with the file's weights in f32."""
LOSSES = [4.4721, 3.9433, 3.5394, 3.5276]
"""The same of each quarter: tokens with wrong positions are predicted worse the further behind they are."""
PRECISIONS = {"default": "", "f32": json.dumps({"INFERENCE_PRECISION_HINT": "f32"})}


@pytest.fixture(scope="module", params=PRECISIONS)
def engine(request, smollm2):
    properties = PRECISIONS[request.param]
    options = {"kv_cache_precision": "", "plugin_config": properties}
    return load(blocks=200, pipeline_type="PAGED", model_path=str(smollm2), **options)


def test_a_text_is_predicted_as_well_as_by_torch(engine):
    ids = engine.encode(TEXT.read_text("utf-8"), False)[:TOKENS]
    answer = Rig(pipeline=engine).ask(ids, max_tokens=1, prompt_logprobs=True)
    losses = -np.array(answer.prompt_logprobs[1:])
    assert len(losses) == TOKENS - 1
    quarters = [float(losses[start : start + QUARTER].mean()) for start in range(0, TOKENS - 1, QUARTER)]
    assert quarters == pytest.approx(LOSSES, abs=0.02)
    assert float(losses.mean()) == pytest.approx(LOSS, abs=math.log(1.01))


def test_a_long_answer_stays_a_text(engine):
    """The penalty keeps a model of this size from telling one sentence again and again."""
    question = "Write a long story about a lighthouse keeper who finds a letter in a bottle."
    prompt = engine.encode(chat(question), False)
    answer = Rig(pipeline=engine).ask(prompt, max_tokens=900, ignore_eos=True, repetition_penalty=1.1)
    words = engine.decode(answer.tokens[0], True).split()
    assert len(words) > 450
    for start in (0, 150, 300):
        part = [word.strip('.,:;!?"()') for word in words[start : start + 150]]
        assert len(set(part)) > 60, part
        assert sum(word.isalpha() for word in part) > 120, part
