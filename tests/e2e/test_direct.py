"""The server's answers are those of a direct openvino_genai call with the same prompt, seed and parameters."""

from __future__ import annotations

import json
from itertools import product
from typing import Any

import openai
import pytest

from lean_ovms.config import DEMO_MODEL
from tests.e2e.conftest import EXACT, local_server

pytestmark = pytest.mark.model

PROMPTS = ["Hello", "The capital of France is", "One two three four", "def f(x):"]


@pytest.fixture(scope="module")
def direct() -> Any:
    genai = pytest.importorskip("openvino_genai")
    scheduler = genai.SchedulerConfig()
    scheduler.num_kv_blocks = 256
    return genai.ContinuousBatchingPipeline(str(DEMO_MODEL), scheduler, "CPU", json.loads(EXACT))


def generate(direct: Any, prompt: str, **fields: Any) -> list[str]:
    """Returns the texts of one direct call, best first."""
    import numpy as np
    import openvino as ov
    import openvino_genai as genai

    config = genai.GenerationConfig()
    config.max_new_tokens = 24
    config.stop_token_ids = direct.get_config().stop_token_ids
    for name, value in fields.items():
        setattr(config, name, value)
    tokenizer = direct.get_tokenizer()
    ids = np.array(tokenizer.encode(prompt).input_ids.data, dtype=np.int64)
    handle = direct.add_request(7, ov.Tensor(ids), config)
    while direct.has_non_finished_requests():
        direct.step()
    outputs = sorted(handle.read_all(), key=lambda output: -output.score)
    return [tokenizer.decode(output.generated_ids) for output in outputs]


def texts(client: openai.OpenAI, prompt: str, **fields: Any) -> list[str]:
    answer = client.completions.create(model="demo", prompt=prompt, max_tokens=24, **fields)
    return [choice.text for choice in answer.choices]


@pytest.mark.parametrize("prompt", PROMPTS)
def test_greedy(client: openai.OpenAI, direct: Any, prompt: str) -> None:
    assert texts(client, prompt, temperature=0) == generate(direct, prompt, do_sample=False)


async def test_a_seed_gives_the_same_text_where_openvino_genai_samples(direct: Any) -> None:
    async with local_server(pipeline_type="LM_CB", plugin_config=EXACT) as local, local.client() as client:
        for prompt, seed in product(PROMPTS, (1, 4294967295)):
            ask: Any = {"temperature": 1.2, "top_p": 0.9, "seed": seed, "extra_body": {"top_k": 50}, "max_tokens": 24}
            answer = await client.completions.create(model="demo", prompt=prompt, **ask)
            sampled = {"do_sample": True, "temperature": 1.2, "top_p": 0.9, "top_k": 50, "rng_seed": seed}
            assert [choice.text for choice in answer.choices] == generate(direct, prompt, **sampled)


@pytest.mark.parametrize("prompt", PROMPTS)
def test_penalties(client: openai.OpenAI, direct: Any, prompt: str) -> None:
    mine = texts(client, prompt, temperature=0, presence_penalty=0.5, extra_body={"repetition_penalty": 1.3})
    assert mine == generate(direct, prompt, do_sample=False, presence_penalty=0.5, repetition_penalty=1.3)


@pytest.mark.parametrize("prompt", PROMPTS)
def test_beam_search(client: openai.OpenAI, direct: Any, prompt: str) -> None:
    mine = texts(client, prompt, n=2, best_of=4, extra_body={"length_penalty": 0.7})
    theirs = generate(direct, prompt, num_beams=4, num_return_sequences=2, length_penalty=0.7)
    assert mine == theirs[:2]


def test_answers_do_not_depend_on_the_company(client: openai.OpenAI, direct: Any) -> None:
    together = client.completions.create(model="demo", prompt=PROMPTS, max_tokens=24, temperature=0)
    assert [c.text for c in together.choices] == [generate(direct, p, do_sample=False)[0] for p in PROMPTS]


@pytest.mark.parametrize("text", ["Hello", "Grüße, 世界 🙂", "a  b\n\n\tc", "<|im_start|>user"])
@pytest.mark.parametrize("special", [True, False])
def test_tokens_are_those_of_the_engines_tokenizer(
    client: openai.OpenAI, direct: Any, text: str, special: bool
) -> None:
    ids = direct.get_tokenizer().encode(text, add_special_tokens=special).input_ids.data.reshape(-1).tolist()
    ask = {"model": "demo", "text": text, "add_special_tokens": special}
    assert client.post("/tokenize", cast_to=object, body=ask) == {"tokens": ids}
    back = client.post("/detokenize", cast_to=object, body={"model": "demo", "tokens": ids})
    text = direct.get_tokenizer().decode(ids, skip_special_tokens=False)
    assert back == {"prompt": text, "content": text}
