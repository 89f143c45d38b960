"""Draft models and prompt lookup: greedy answers are those of the model without them, and draft tokens are counted."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import openai
import pytest
import pytest_asyncio

from tests.e2e.conftest import EXACT, LocalServer, local_server

pytestmark = [pytest.mark.model, pytest.mark.asyncio(loop_scope="module")]

DRAFT = Path(__file__).parents[1] / "data" / "demo_draft"
PROMPTS = ["Hello", "The capital of France is", "Count: 1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3, 4,", "def f(x):"]
KINDS: dict[str, tuple[dict[str, Any], dict[str, int]]] = {
    "draft": ({"draft_model_path": str(DRAFT)}, {"num_assistant_tokens": 4}),
    "lookup": ({"prompt_lookup": True}, {"num_assistant_tokens": 4, "max_ngram_size": 2}),
}
"""Options of the server, and fields of a request."""


@pytest.fixture(scope="module", params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def local(kind: str) -> AsyncIterator[LocalServer]:
    shown = {"metrics_enable": True, "per_request_spec_decode_metrics": "detailed"}
    async with local_server(plugin_config=EXACT, **shown, **KINDS[kind][0]) as local:
        yield local


async def test_greedy_answers_are_the_models_own_and_drafts_are_counted(
    local: LocalServer, kind: str, client: openai.OpenAI
) -> None:
    """`client` is for a server without a draft model."""
    assert local.model.info.speculative
    ask: dict[str, Any] = {"model": "demo", "max_tokens": 24, "temperature": 0}
    tuned = KINDS[kind][1]
    async with local.client() as assisted:
        drafted = []
        for prompt in PROMPTS:
            found = await assisted.completions.create(prompt=prompt, **ask, extra_body=tuned)
            assert found.choices[0].text == client.completions.create(prompt=prompt, **ask).choices[0].text
            assert found.model_extra
            drafted.append(found.model_extra["metrics"]["speculative_decoding"])
        stats = await local.model.stats()
        assert stats.accepted > 0
        assert sum(sum(one["per_step_drafted"]) for one in drafted) == stats.drafted
        assert sum(one["num_accepted_draft_tokens"] for one in drafted) == stats.accepted
        assert stats.drafts <= stats.drafted <= 4 * stats.drafts
        assert sum(stats.accepted_by_position) == stats.accepted <= stats.drafted
        exposed = str(await assisted.get(f"{local.url}/metrics", cast_to=str))
        assert f'spec_decode_num_accepted_tokens_total{{model_name="demo"}} {stats.accepted}' in exposed
        assert f'spec_decode_num_draft_tokens_total{{model_name="demo"}} {stats.drafted}' in exposed

        chat: dict[str, Any] = {**ask, "messages": [{"role": "user", "content": "Hello!"}]}
        expected = client.chat.completions.create(**chat).choices[0].message.content
        together = await asyncio.gather(*(assisted.chat.completions.create(**chat) for _ in range(6)))
        assert {answer.choices[0].message.content for answer in together} == {expected}
        # Beams have no draft tokens.
        await assisted.completions.create(model="demo", prompt="x", best_of=3, max_tokens=4)
