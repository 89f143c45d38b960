"""SmolLM2-135M-Instruct as a GGUF file and as IR in int8: how well it predicts a long English text, and writes one."""

import json
import math
from pathlib import Path

import numpy as np
import pytest

from lean_ovms.features.gguf.child.tokenizer import GgufTokenizer
from tests.engine.real import chat, load
from tests.engine.rig import Rig

DATA = Path(__file__).parents[1] / "data" / "real"
TEXT = (DATA / "english.txt").read_text("utf-8")
TOKENS, PART = 7901, 450
LOSSES = json.loads((DATA / "smollm2.json").read_text("utf-8"))["losses"]
"""The mean loss of a token behind the first in each part of the text, by torch with the file's weights in f32.

Tokens with wrong positions are predicted worse the further behind they are.
"""
LENGTHS = 4, 9, len(LOSSES)
"""So many parts of the text are compared as a whole: 1,800 tokens, 4,050 and 7,900."""
PRECISIONS = {"default": "", "f32": json.dumps({"INFERENCE_PRECISION_HINT": "f32"})}


def loaded(path, precision):
    options = {"kv_cache_precision": "", "plugin_config": PRECISIONS[precision]}
    return load(blocks=300, pipeline_type="PAGED", model_path=str(path), **options)


@pytest.fixture(scope="module", params=PRECISIONS)
def engine(request, smollm2):
    return loaded(smollm2, request.param)


def differences(engine, tokenizer):
    """Returns by how much the loss of each part is above torch's, and that of the first parts as a whole."""
    ids = tokenizer.encode(TEXT, False)[:TOKENS]
    losses = -np.array(Rig(pipeline=engine).ask(ids, max_tokens=1, prompt_logprobs=True).prompt_logprobs[1:])
    assert len(losses) == TOKENS - 1
    parts = [float(losses[start : start + PART].mean()) for start in range(0, TOKENS - 1, PART)]
    sizes = [len(losses[start : start + PART]) for start in range(0, TOKENS - 1, PART)]
    each = np.array(parts) - LOSSES
    return each, [float(np.average(each[:count], weights=sizes[:count])) for count in LENGTHS]


def test_a_text_is_predicted_as_well_as_by_torch(engine):
    parts, wholes = differences(engine, engine)
    assert parts == pytest.approx(0, abs=0.02)
    assert wholes == pytest.approx([0] * len(LENGTHS), abs=math.log(1.01))


def test_a_text_is_predicted_nearly_as_well_in_int8(smollm2_ir, smollm2):
    """The ids are those of the GGUF file: transformers made the tokenizer of the IR, and it is another one."""
    parts, wholes = differences(loaded(smollm2_ir, "default"), GgufTokenizer(smollm2))
    assert parts == pytest.approx(0, abs=0.04)
    assert wholes == pytest.approx([0] * len(LENGTHS), abs=math.log(1.02))


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
