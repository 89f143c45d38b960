"""The order of the checks of a body: of two errors a client gets the one that is checked first."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

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
UNSUPPORTED: Fault = ({"audio": 1}, "audio")

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
            TOOLS,
            ({"max_output_tokens": LIMIT + 1}, "max_output_tokens"),
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
