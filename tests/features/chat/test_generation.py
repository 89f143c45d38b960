"""Reading a body: of two errors, the one that is checked first is reported, and the body is not changed."""

from __future__ import annotations

from copy import deepcopy
from functools import partial
from itertools import pairwise
from typing import Any

import pytest

from lean_ovms.features.anthropic.api.request import parse_message
from lean_ovms.features.chat.request import parse_chat
from lean_ovms.features.cohere.api import chat as cohere
from lean_ovms.features.completions.request import parse_completion
from lean_ovms.features.llama_cpp.api import completion as llama_cpp
from lean_ovms.features.responses.request import parse_response
from tests.api.conftest import MakeApp, post, whole
from tests.fakes import say

LIMIT = 50
MESSAGES = [{"role": "user", "content": "hi"}]
Fault = tuple[dict[str, Any], str]

TYPE: Fault = ({"temperature": "hot"}, "temperature")
MODEL: Fault = ({"model": "nope"}, "model")
STREAM: Fault = ({"stream_options": {"include_obfuscation": True}}, "stream_options")
TOOLS: Fault = ({"tools": 5}, "tools")
SAMPLING: Fault = ({"n": 0}, "n")
STRUCTURE: Fault = ({"structured_outputs": {}}, "structured_outputs")
UNSUPPORTED: Fault = ({"chunk_frames": 0}, "chunk_frames")

FAULTS: dict[str, tuple[dict[str, Any], list[Fault]]] = {
    "/v1/chat/completions": (
        {"messages": MESSAGES},
        [
            TYPE,
            MODEL,
            STREAM,
            ({"max_completion_tokens": LIMIT + 1}, "max_completion_tokens"),
            TOOLS,
            ({"messages": []}, "messages"),
            SAMPLING,
            ({"max_tokens": 0}, "max_tokens"),
            STRUCTURE,
            UNSUPPORTED,
            ({"modalities": ["text", "audio"]}, "modalities"),
        ],
    ),
    "/v1/completions": (
        {"prompt": "hi"},
        [
            TYPE,
            MODEL,
            STREAM,
            ({"suffix": "x", "prompt_logprobs": 1}, "suffix"),
            ({"max_tokens": 0}, "max_tokens"),
            SAMPLING,
            STRUCTURE,
            ({"echo": True, "logprobs": 1}, "logprobs"),
            UNSUPPORTED,
            ({"prompt": ""}, "prompt"),
        ],
    ),
    "/v1/responses": (
        {"input": "hi"},
        [
            ({"moderation": "x"}, "moderation"),
            TYPE,
            MODEL,
            STREAM,
            ({"background": True, "store": False}, "background"),
            ({"max_output_tokens": LIMIT + 1}, "max_output_tokens"),
            TOOLS,
            SAMPLING,
            STRUCTURE,
            UNSUPPORTED,
            ({"input": []}, "input"),
        ],
    ),
}


@pytest.mark.parametrize(
    ("path", "first", "second"),
    [(path, *pair) for path, (_, faults) in FAULTS.items() for pair in pairwise(faults)],
    ids=lambda value: value[1] if isinstance(value, tuple) else None,
)
async def test_the_first_of_two_errors_is_answered(make_app: MakeApp, path: str, first: Fault, second: Fault) -> None:
    app, engine = await make_app(max_tokens_limit=LIMIT)
    valid = {"model": "m", **FAULTS[path][0]}
    for fault, param in ((second[0] | first[0], first[1]), second):
        response = await post(app, path, valid | fault)
        assert (response.status in (400, 404), (await whole(response))["error"]["param"]) == (True, param)
    assert engine.submitted == []


@pytest.mark.parametrize("path", FAULTS)
async def test_which_side_of_a_prompt_is_cut(make_app: MakeApp, path: str) -> None:
    app, engine = await make_app(lambda *_: say("x"))
    body = {**FAULTS[path][0], "truncate_prompt_tokens": 5}
    for fields in ({}, {"truncation_side": "left"}, {"truncation_side": "right"}):
        assert (await post(app, path, body | fields)).status == 200
    assert engine.truncated == [(5, "left"), (5, "left"), (5, "right")]
    response = await post(app, path, body | {"truncation_side": "middle"})
    assert (response.status, (await whole(response))["error"]["param"]) == (400, "truncation_side")


FUNCTION = {"name": "f", "description": "d", "parameters": {"type": "object"}}
TOOL = {"type": "function", "function": {**FUNCTION, "strict": None}}
TURNS = [{"role": "developer", "content": [{"type": "text", "text": "a"}]}, *MESSAGES]
SAMPLED = {"temperature": 0.5, "logit_bias": {"1": 2}, "stop_token_ids": [1], "cache_salt": "s", "priority": 1}
READ = {
    "chat": (parse_chat, {"messages": TURNS, "tools": [TOOL], "max_completion_tokens": 5, "top_logprobs": -1}),
    "functions": (parse_chat, {"messages": TURNS, "functions": [FUNCTION], "function_call": {"name": "f"}}),
    "completions": (partial(parse_completion, default_max_tokens=16), {"prompt": ["a"], "n_predict": 0, "logprobs": 0}),
    "responses": (
        parse_response,
        {
            "input": TURNS,
            "tools": [{"type": "namespace", "name": "n", "tools": [{"type": "function", **FUNCTION}]}],
            "text": {"format": {"type": "json_object"}},
            "reasoning": {"effort": "low"},
        },
    ),
    "messages": (
        parse_message,
        {"messages": MESSAGES, "max_tokens": 5, "stop_sequences": ["x"], "thinking": {"type": "enabled"}},
    ),
    "cohere": (
        cohere._parse,
        {"model": "m", "messages": MESSAGES, "tools": [TOOL], "strict_tools": True, "thinking": {"type": "enabled"}},
    ),
    "llama.cpp": (llama_cpp._read_completion, {"prompt": ["a", 1], "n_predict": -1, "logit_bias": [[1, False]]}),
}


@pytest.mark.parametrize("api", READ)
async def test_a_body_is_the_same_after_it_was_read(make_app: MakeApp, api: str) -> None:
    """It is read again if its model had to be loaded first."""
    app, _ = await make_app(max_logprobs=-1)
    parse, body = READ[api]
    body = deepcopy({**(SAMPLED if api != "llama.cpp" else {}), **body})
    before = deepcopy(body)
    first = parse(body, app.services)
    assert body == before
    assert type(parse(body, app.services)) is type(first)
