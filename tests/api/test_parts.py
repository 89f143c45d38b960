"""Requests with many parts, each of which is combined with all of another field: limits count parts, not bytes.

The work of a request on the event loop has one budget for any number of parts, and a total that is too large is
rejected before it is computed. No clock is read: each piece of work takes a simulated time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from lean_ovms.api import app as app_module
from lean_ovms.features.structured_output import constraint
from lean_ovms.text.template.chat_template import ChatTemplate
from lean_ovms.util.concurrency import INLINE_S, InlineTime, inline_left_s
from tests.api.conftest import CODER, MakeApp, MakePooling, post, teach, whole
from tests.fakes import say

HI = [{"role": "user", "content": "Hi"}]
MANY = 100
BATCH = "/v1/chat/completions/batch"
WORK_S = 0.001
"""The simulated seconds of a piece of work."""


class Counted:
    """Pieces of work on the event loop, and in the thread."""

    def __init__(self) -> None:
        self.inline = self.threaded = 0
        self.now = 0.0

    def add(self) -> None:
        self.now += WORK_S
        if inline_left_s.get() is None:
            self.threaded += 1
        else:
            self.inline += 1


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Iterator[Counted]:
    """Counts the rendered templates and the grammars built during the test. Each advances a simulated clock."""
    count = Counted()
    for place, name in ((ChatTemplate, "render"), (constraint, "build")):
        plain = getattr(place, name)

        def work(*given: Any, plain: Any = plain, **named: Any) -> Any:
            count.add()
            return plain(*given, **named)

        monkeypatch.setattr(place, name, work)
    monkeypatch.setattr(app_module, "InlineTime", partial(InlineTime, clock=lambda: count.now))
    return count


def check(counted: Counted, pieces: int) -> None:
    assert counted.inline == pytest.approx(INLINE_S / WORK_S, abs=1)
    assert counted.inline + counted.threaded == pieces


async def test_templates_and_grammars_have_one_budget(make_app: MakeApp, counted: Counted) -> None:
    app, engine = await make_app(say("{}"))
    counted.inline = counted.threaded = 0
    form = {"type": "json_schema", "json_schema": {"name": "f", "schema": {"type": "object"}}}
    assert (await post(app, BATCH, {"messages": [HI] * MANY, "response_format": form})).status == 200
    assert all(engine.constraints)
    check(counted, 2 * MANY)


async def test_of_decisions_few_templates_are_rendered_on_the_loop(make_app: MakeApp, counted: Counted) -> None:
    app, _ = await make_app(lambda *_: say("x", reason="length"), capable=True)
    counted.inline = counted.threaded = 0
    questions = [{"type": "predicate", "instructions": f"Is it {n}?"} for n in range(MANY)]
    assert (await post(app, "/v1/decisions", {"model": "m", "input": "x", "questions": questions})).status == 200
    check(counted, MANY + 1)  # one more for the letters


async def test_of_conversations_to_embed_few_are_rendered_on_the_loop(
    make_pooling: MakePooling, counted: Counted
) -> None:
    app, _ = await make_pooling()
    counted.inline = counted.threaded = 0
    response = await post(app, "/v1/embeddings", {"model": "e", "messages": [HI] * MANY})
    assert response.status == 200, response.body
    check(counted, MANY)


async def test_each_request_has_a_budget_of_its_own(make_app: MakeApp, counted: Counted) -> None:
    app, _ = await make_app(say("x"))
    counted.inline = counted.threaded = 0
    for _ in range(MANY):
        await (await post(app, "/v1/chat/completions", {"messages": HI})).aclose()
        await asyncio.sleep(0)  # each in an iteration of its own, because the budget of an iteration is another
    assert (counted.inline, counted.threaded) == (MANY, 0)


# --- what parts make together ---------------------------------------------------------------------------------------

LIMIT = {"max_queued_tokens_per_client": 500}
QUESTION = {"type": "predicate", "instructions": "Is it?"}


@pytest.mark.parametrize(
    ("path", "fields", "submitted"),
    [
        ("/v1/completions", {"prompt": [[65] * 200] * 3}, 0),
        ("/v1/completions", {"prompt": ["x" * 200] * 40}, 8),
        (BATCH, {"messages": [[{"role": "user", "content": "x" * 200}]] * 40}, 8),
        ("/generative_scoring", {"query": [65] * 200, "items": [[66]] * 3, "label_token_ids": [1]}, 0),
        ("/generative_scoring", {"query": "x" * 200, "items": ["y"] * 3, "label_token_ids": [1]}, 0),
        ("/v1/decisions", {"input": "x" * 200, "questions": [QUESTION] * 3}, 1),
        ("/completion", {"prompt": [[65] * 200] * 3}, 0),
    ],
)
async def test_prompts_of_more_tokens_than_the_queue_takes_are_refused_with_the_limit(
    make_app: MakeApp, path: str, fields: dict[str, Any], submitted: int
) -> None:
    """The error is not a 429, because trying again would never help. If the total is known, nothing is rendered
    before."""
    app, engine = await make_app(lambda *_: say("x", reason="length"), capable=True, **LIMIT)
    response = await post(app, path, {"model": "m", "max_tokens": 1, **fields})
    body = await whole(response)
    assert response.status == 400, body
    message = body["error"]["message"]
    assert "500 tokens together" in message
    assert "--max_queued_tokens_per_client" in message
    assert len(engine.submitted) <= submitted
    assert not engine.mail.busy


async def test_conversations_with_the_same_tools_are_refused_by_the_first_one(make_app: MakeApp) -> None:
    """The tokens besides the messages are in each conversation, so the others need not be rendered."""
    template = "{{ tools }}{% for m in messages %}{{ m.content }};{% endfor %}"
    tools = [{"type": "function", "function": {"name": f"f{n}", "description": "x" * 60}} for n in range(10)]
    app, engine = await make_app(say("x"), chat_template=template, max_queued_tokens_per_client=5000)
    engine.info = replace(engine.info, context_length=4000, kv_blocks=1000)
    await app.registry.models["m"].load()
    for count, status, submitted in ((MANY, 400, 1), (2, 200, 2)):
        engine.submitted.clear()
        response = await post(app, BATCH, {"model": "m", "messages": [HI] * count, "tools": tools})
        assert response.status == status, response.body
        assert len(engine.submitted) == submitted
        await response.aclose()
    assert not engine.mail.busy


async def test_one_prompt_may_be_longer_than_what_waits(make_app: MakeApp) -> None:
    app, _ = await make_app(lambda *_: say("x", reason="length"), capable=True, **LIMIT)
    for path, fields in (
        ("/v1/completions", {"prompt": [[65] * 600]}),
        ("/generative_scoring", {"query": [65] * 600, "items": [[66]], "label_token_ids": [1]}),
        ("/v1/decisions", {"input": "x" * 600, "questions": [QUESTION]}),
    ):
        response = await post(app, path, {"model": "m", "max_tokens": 1, **fields})
        assert response.status == 200, (path, response.body)
        await response.aclose()


async def test_a_suffix_is_not_copied_for_prompts_that_come_later(
    make_app: MakeApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    app, engine = await make_app(say("x"))
    teach(engine, CODER, monkeypatch)
    body = {"model": "m", "prompt": ["a"] * MANY, "suffix": "b" * 300_000}
    response = await post(app, "/v1/completions", body)
    assert response.status == 400
    assert (await whole(response))["error"]["code"] == "context_length_exceeded"
    assert not engine.submitted


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"echo": True, "prompt": "x" * 900_000}, "echo"),
        ({"return_token_ids": True, "prompt": [65] * 150_000}, "return_token_ids"),
        ({"echo": True, "prompt": ["x" * 90_000] * 10, "stream": True}, "echo"),
    ],
)
async def test_prompts_in_many_answers_are_limited(make_app: MakeApp, fields: dict[str, Any], param: str) -> None:
    app, engine = await make_app(say("x", sequences=10))
    response = await post(app, "/v1/completions", {"model": "m", "n": 10, **fields})
    body = await whole(response)
    assert (response.status, body["error"]["param"]) == (400, param), body
    assert "the limit is 8388608" in body["error"]["message"]
    assert not engine.submitted


async def test_log_probabilities_of_a_prompt_count_once_for_each_choice(make_app: MakeApp) -> None:
    app, engine = await make_app(say("x", sequences=20), capable=True, max_body_values=1 << 20)
    fields = {"echo": True, "logprobs": 0, "prompt": [[65] * 900] * 15}
    for n, status in ((1, 200), (20, 400)):
        response = await post(app, "/v1/completions", {"model": "m", "n": n, "max_tokens": 1, **fields})
        assert response.status == status, response.body
        await response.aclose()
    assert not engine.mail.busy


async def test_a_score_template_is_not_rendered_to_the_end_for_texts_that_are_too_long(
    make_pooling: MakePooling, counted: Counted
) -> None:
    """Each pair contains the whole query."""
    template = "{{ messages[0].content }}{{ messages[1].content }}"
    app, _ = await make_pooling("rerank", chat_template=template, max_pooling_tokens=100)
    counted.inline = counted.threaded = 0
    response = await post(app, "/rerank", {"model": "e", "query": "x" * 1000, "documents": ["a"] * MANY})
    body = await whole(response)
    assert response.status == 400
    assert "inputs together have" in body["error"]["message"]
    assert counted.inline + counted.threaded < MANY
