"""The server's answers and tokens are those of a direct openvino_genai call with the same prompt."""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest

from lean_ovms.config import DEMO_MODEL
from tests.e2e.conftest import EXACT

pytestmark = pytest.mark.model

PROMPTS = ["Hello", "The capital of France is", "One two three four", "def f(x):"]
TEXTS = ["Hello", "Grüße, 世界 🙂", "a  b\n\n\tc", "<|im_start|>user"]


def test_answers_and_tokens_are_those_of_openvino_genai(client: openai.OpenAI) -> None:
    """tests/engine/paged/test_genai.py compares beams, log probabilities and preemption with the engine alone."""
    genai = pytest.importorskip("openvino_genai")
    scheduler = genai.SchedulerConfig()
    scheduler.num_kv_blocks = 256
    direct: Any = genai.ContinuousBatchingPipeline(str(DEMO_MODEL), scheduler, "CPU", json.loads(EXACT))
    config = genai.GenerationConfig()
    config.max_new_tokens, config.do_sample = 24, False
    config.stop_token_ids = direct.get_config().stop_token_ids
    tokenizer = direct.get_tokenizer()

    together = client.completions.create(model="demo", prompt=PROMPTS, max_tokens=24, temperature=0)
    for prompt, choice in zip(PROMPTS, together.choices, strict=True):
        [result] = direct.generate([tokenizer.encode(prompt).input_ids], [config])
        assert choice.text == tokenizer.decode(result.m_generation_ids[0])

    for text in TEXTS:
        for special in (True, False):
            ids = tokenizer.encode(text, add_special_tokens=special).input_ids.data.reshape(-1).tolist()
            ask = {"model": "demo", "text": text, "add_special_tokens": special}
            assert client.post("/tokenize", cast_to=object, body=ask) == {"tokens": ids}
            back = client.post("/detokenize", cast_to=object, body={"model": "demo", "tokens": ids})
            assert back == dict.fromkeys(("prompt", "content"), tokenizer.decode(ids, skip_special_tokens=False))
