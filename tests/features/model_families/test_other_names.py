"""Fields by which clients of other servers control reasoning in OpenAI's chat."""

from __future__ import annotations

from typing import Any

import pytest

from lean_ovms.features.model_families.feature import FEATURE
from lean_ovms.features.model_families.other_names import FIELDS
from tests.api.conftest import MakeApp, post, warnings_of, whole
from tests.fakes import say

CHAT = "/v1/chat/completions"
BODY = {"messages": [{"role": "user", "content": "a"}]}
TEMPLATE = "{{ enable_thinking }}|{{ reasoning_effort }}|{{ x }}"

OVERRULED = {
    str(fields): texts
    for fields, *texts in (
        (
            {"reasoning": {"effort": "high"}, "reasoning_effort": "low"},
            "reasoning.effort has no effect: reasoning_effort has precedence",
        ),
        (
            {"reasoning": {"max_tokens": 9}, "thinking_token_budget": 5},
            "reasoning.max_tokens has no effect: thinking_token_budget has precedence",
        ),
        (
            {"enable_thinking": False, "chat_template_kwargs": {"enable_thinking": True}},
            "enable_thinking has no effect: chat_template_kwargs.enable_thinking has precedence",
        ),
        (
            {"think": False, "thinking": {"type": "enabled"}},
            "thinking.type has no effect: think has precedence",
        ),
        (
            {"think": True, "thinking": {"type": "enabled"}, "reasoning": {"enabled": False}},
            "reasoning.enabled has no effect: think has precedence",
        ),
        (
            {"reasoning": {"max_tokens": 9}, "thinking": {"type": "auto", "budget_tokens": 7}},
            "thinking.budget_tokens has no effect: reasoning.max_tokens has precedence",
        ),
        (
            {"reasoning_effort": "none", "enable_thinking": True},
            "reasoning_effort does not turn reasoning on or off: enable_thinking has precedence",
        ),
    )
}
"""The warnings about fields that do not count, by the fields of a request."""


def test_the_manifest_has_their_names() -> None:
    assert FEATURE.body is not None
    assert FEATURE.body.names == tuple(field.name for field in FIELDS)


@pytest.mark.parametrize(
    ("fields", "prompt", "budget"),
    [
        ({"reasoning": {"effort": "low"}}, "True|low|", None),
        ({"reasoning": {"effort": "none"}}, "False|none|", None),
        ({"reasoning": {"effort": "high"}, "reasoning_effort": "low"}, "True|low|", None),
        ({"reasoning": {"enabled": False}}, "False||", None),
        ({"reasoning": {"max_tokens": 9, "effort": None}}, "||", 9),
        ({"reasoning": {"max_tokens": 9}, "thinking_token_budget": 5}, "||", 5),
        ({"thinking": {"type": "disabled"}}, "False||", None),
        ({"thinking": {"type": "enabled", "budget_tokens": 7.0}}, "True||", 7),
        ({"thinking": {"type": "auto"}}, "||", None),
        ({"enable_thinking": False}, "False||", None),
        ({"enable_thinking": False, "chat_template_kwargs": {"x": 1}}, "False||1", None),
        ({"enable_thinking": False, "chat_template_kwargs": {"enable_thinking": True}}, "True||", None),
        ({"think": False, "thinking": {"type": "enabled"}}, "False||", None),
        ({"think": True, "thinking": {"type": "enabled"}, "reasoning": {"enabled": False}}, "True||", None),
        ({"reasoning": {"max_tokens": 9}, "thinking": {"type": "auto", "budget_tokens": 7}}, "||", 9),
        ({"reasoning_effort": "none", "enable_thinking": True}, "True|none|", None),
        ({"reasoning_effort": "low", "think": "low", "enable_thinking": True}, "True|low|", None),
        ({"think": "low"}, "True|low|", None),
    ],
)
async def test_what_the_template_gets(make_app: MakeApp, fields: Any, prompt: str, budget: int | None) -> None:
    app, engine = await make_app(
        lambda *_: say("x"), capable=True, reasoning_parser="qwen3", trust_request_chat_template=True
    )
    response = await post(app, CHAT, BODY | {"chat_template": TEMPLATE} | fields)
    assert response.status == 200, response.body
    assert warnings_of(response) == OVERRULED.get(str(fields), [])
    [(sent, sampling)] = engine.submitted
    assert (sent, sampling.thinking_token_budget) == (prompt, budget)


@pytest.mark.parametrize("exclude", [True, False])
async def test_reasoning_that_is_left_out(make_app: MakeApp, exclude: bool) -> None:
    app, _ = await make_app(lambda *_: say("<think>", "hm", "</think>", "x"), reasoning_parser="qwen3")
    answer = await whole(await post(app, CHAT, BODY | {"reasoning": {"exclude": exclude}}))
    [choice] = answer["choices"]
    assert choice["message"].get("reasoning_content") == (None if exclude else "hm")


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"reasoning": {"effort": 1}}, "reasoning.effort"),
        ({"reasoning": {"max_tokens": True}}, "reasoning.max_tokens"),
        ({"thinking": {"type": "x"}}, "thinking.type"),
        ({"think": 1}, "think"),
        ({"enable_thinking": "x"}, "enable_thinking"),
        ({"enable_thinking": True, "chat_template_kwargs": 5}, "chat_template_kwargs"),
    ],
)
async def test_a_wrong_value_is_named(make_app: MakeApp, fields: Any, param: str) -> None:
    app, _ = await make_app(lambda *_: say("x"), capable=True)
    response = await post(app, CHAT, BODY | fields)
    assert response.status == 400
    assert (await whole(response))["error"]["param"] == param


async def test_completions_have_no_reasoning_to_control(make_app: MakeApp) -> None:
    app, _ = await make_app(lambda *_: say("x"), capable=True)
    response = await post(app, "/v1/completions", {"prompt": "a", "enable_thinking": False, "thinking": None})
    found = warnings_of(response)
    assert found == ["enable_thinking has no effect: this endpoint uses no chat template"]
