"""Speculative and prompt lookup decoding: greedy answers are those of direct calls, and draft tokens are counted."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import openai
import pytest
import pytest_asyncio

from lean_ovms.config import DEMO_MODEL
from tests.e2e.conftest import EXACT, LocalServer, local_server

pytestmark = [pytest.mark.model, pytest.mark.asyncio(loop_scope="module")]

DRAFT = Path(__file__).parents[1] / "data" / "demo_draft"
PROMPTS = ["Hello", "The capital of France is", "Count: 1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3, 4,", "def f(x):"]
OPTIONS: dict[str, dict[str, Any]] = {"draft": {"draft_model_path": str(DRAFT)}, "lookup": {"prompt_lookup": True}}


@pytest.fixture(scope="module", params=["draft", "lookup"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def answers(kind: str) -> dict[str, tuple[list[str], list[str]]]:
    """Returns the texts of direct calls by prompt, with and without the assistant."""
    import openvino_genai as genai

    scheduler = genai.SchedulerConfig()
    scheduler.num_kv_blocks, scheduler.max_num_batched_tokens = 64, 1024
    exact = json.loads(EXACT)
    helper = (
        {"draft_model": genai.draft_model(str(DRAFT), "CPU", **exact)} if kind == "draft" else {"prompt_lookup": True}
    )
    speculative = genai.ContinuousBatchingPipeline(str(DEMO_MODEL), scheduler, "CPU", {**exact, **helper})
    plain = genai.ContinuousBatchingPipeline(str(DEMO_MODEL), scheduler, "CPU", exact)

    def text(pipe: Any, prompt: str) -> str:
        config = genai.GenerationConfig()
        config.max_new_tokens, config.stop_token_ids = 24, pipe.get_config().stop_token_ids
        if pipe is speculative:
            config.num_assistant_tokens = 4
            if kind == "lookup":
                config.max_ngram_size = 2
        result = pipe.generate([pipe.get_tokenizer().encode(prompt).input_ids], [config])[0]
        return str(pipe.get_tokenizer().decode(result.m_generation_ids[0]))

    return {prompt: ([text(speculative, prompt)], [text(plain, prompt)]) for prompt in PROMPTS}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def local(kind: str) -> AsyncIterator[LocalServer]:
    async with local_server(
        plugin_config=EXACT, metrics_enable=True, per_request_spec_decode_metrics="detailed", **OPTIONS[kind]
    ) as local:
        yield local


async def test_greedy_answers_are_those_of_direct_calls_and_guesses_are_counted(
    local: LocalServer, kind: str, answers: Any
) -> None:
    async with local.client() as client:
        tuned = {"num_assistant_tokens": 4, **({"max_ngram_size": 2} if kind == "lookup" else {})}
        drafted = []
        for prompt in PROMPTS:
            found = await client.completions.create(
                model="demo", prompt=prompt, max_tokens=24, temperature=0, extra_body=tuned
            )
            assert ([found.choices[0].text],) * 2 == answers[prompt]
            assert found.model_extra
            drafted.append(found.model_extra["metrics"]["speculative_decoding"])
        stats = await local.model.stats()
        assert stats.accepted > 0
        assert sum(sum(one["per_step_drafted"]) for one in drafted) == stats.drafted
        assert sum(one["num_accepted_draft_tokens"] for one in drafted) == stats.accepted
        assert stats.drafts <= stats.drafted <= 4 * stats.drafts  # these are the counts of the server's first test
        assert sum(stats.accepted_by_position) == stats.accepted <= stats.drafted
        exposed = await _metrics(local.url, client)
        assert f'spec_decode_num_accepted_tokens_total{{model_name="demo"}} {stats.accepted}' in exposed
        assert f'spec_decode_num_draft_tokens_total{{model_name="demo"}} {stats.drafted}' in exposed


async def test_greedy_texts_are_the_models_own_in_a_batch_too(
    local: LocalServer, kind: str, client: openai.OpenAI
) -> None:
    """`client` is for a server without a draft model."""
    ask: dict[str, Any] = {"model": "demo", "temperature": 0, "max_tokens": 40}
    ask["messages"] = [{"role": "user", "content": "Hello!"}]
    expected = client.chat.completions.create(**ask).choices[0].message.content
    assert local.model.info.speculative
    async with local.client() as assisted:
        together = await asyncio.gather(*(assisted.chat.completions.create(**ask) for _ in range(6)))
        assert {answer.choices[0].message.content for answer in together} == {expected}
        tuned = {"num_assistant_tokens": 3, **({"max_ngram_size": 2} if kind == "lookup" else {})}
        alone = await assisted.chat.completions.create(**ask, extra_body=tuned)
        assert alone.choices[0].message.content == expected
        # Beams have no draft tokens.
        await assisted.completions.create(model="demo", prompt="x", best_of=3, max_tokens=4)


async def _metrics(url: str, client: openai.AsyncOpenAI) -> str:
    answer = await client.get(f"{url}/metrics", cast_to=str)
    return str(answer)
