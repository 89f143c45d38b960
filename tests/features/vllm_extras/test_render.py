"""chat/completions/render and completions/render: the token ids of a prompt, and the body that generates from them."""

from __future__ import annotations

from typing import Any

import pytest

from tests.api.conftest import MakeApp, post, whole
from tests.fakes import EOS, say

CHAT, COMPLETIONS, GENERATE = "/v1/chat/completions/render", "/v1/completions/render", "/inference/v1/generate"
HELLO = {"messages": [{"role": "user", "content": "hi"}]}


async def test_a_chat_has_the_ids_that_its_generation_would_have(make_app: MakeApp) -> None:
    app, engine = await make_app(capable=True)
    fields = {"max_tokens": 5, "temperature": 0.5, "cache_salt": "s", "priority": 3, "stream": True, "request_id": "a"}
    body = await whole(await post(app, CHAT, {**HELLO, **fields, "stream_options": {"include_usage": True}}))
    assert bytes(body["token_ids"]) == b"user:hi;"
    assert (body["request_id"], body["model"], body["features"]) == ("chatcmpl-a", "m", None)
    assert (body["cache_salt"], body["priority"], body["stream"]) == ("s", 3, True)
    assert body["stream_options"] == {"include_usage": True}
    assert body["sampling_params"]["max_tokens"] == 5
    assert body["sampling_params"]["temperature"] == 0.5
    assert not engine.submitted, "nothing is generated"


async def test_each_prompt_of_completions_is_a_body_and_cut_as_its_generation_would_cut_it(make_app: MakeApp) -> None:
    app, _ = await make_app()
    bodies = await whole(await post(app, COMPLETIONS, {"prompt": ["ab", "c"]}))
    assert [body["token_ids"] for body in bodies] == [[EOS, *b"ab"], [EOS, *b"c"]]
    assert {body["sampling_params"]["max_tokens"] for body in bodies} == {16}
    [body] = await whole(await post(app, COMPLETIONS, {"prompt": [7, 8]}))
    assert body["token_ids"] == [7, 8]
    [body] = await whole(await post(app, "/v3/completions/render", {"prompt": [7, 8]}))
    assert body["sampling_params"]["max_tokens"] == 1000 - 2, "as many as fit"
    for fields, expected in (
        ({"truncate_prompt_tokens": 3}, b"hi;"),
        ({"truncate_prompt_tokens": 3, "truncation_side": "right"}, b"use"),
        ({"truncate_prompt_tokens": -1, "max_tokens": 100}, b"user:hi;"),
    ):
        assert bytes((await whole(await post(app, CHAT, {**HELLO, **fields})))["token_ids"]) == expected


FIELDS: list[dict[str, Any]] = [
    {},
    {"temperature": 0},
    {"temperature": 0.3, "top_p": 0.5, "top_k": 7, "min_p": 0.1, "seed": 5, "n": 2, "max_tokens": 9, "min_tokens": 2},
    {"presence_penalty": 1, "frequency_penalty": -1, "repetition_penalty": 1.5, "stop_token_ids": [4], "top_k": -1},
    {"logprobs": True, "top_logprobs": 2, "logit_bias": {"5": -3}, "bad_words": ["x"], "allowed_token_ids": [1, 2]},
    {"logprob_token_ids": [3], "prompt_logprobs": 1, "cache_salt": "s", "ignore_eos": True},
    {"repetition_detection": {"max_pattern_size": 4, "min_pattern_size": 2, "min_count": 3}},
    {"stop": ["a", "b"], "include_stop_str_in_output": True, "skip_special_tokens": False},
]


@pytest.mark.parametrize("fields", FIELDS, ids=lambda fields: ",".join(fields) or "none")
async def test_what_is_rendered_generates_as_the_request_would(make_app: MakeApp, fields: dict[str, Any]) -> None:
    def script(_: Any, sampling: Any) -> Any:
        return say("x", sequences=sampling.n)

    app, engine = await make_app(script, capable=True)
    direct = await whole(await post(app, "/v1/chat/completions", {**HELLO, **fields, "return_token_ids": True}))
    response = await post(app, GENERATE, await whole(await post(app, CHAT, {**HELLO, **fields})))
    assert "Warning" not in dict(response.headers)
    generated = await whole(response)
    (text, one), (tokens, other) = engine.submitted
    assert list(text.encode()) == tokens
    assert other.max_tokens == (one.max_tokens or 1000 - len(tokens))
    other.max_tokens = one.max_tokens
    if "seed" not in fields:
        one.seeds = other.seeds
    assert other == one
    assert [c["token_ids"] for c in generated["choices"]] == [c["token_ids"] for c in direct["choices"]]


SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
TAG = {"type": "tag", "begin": "<", "content": {"type": "any_text"}, "end": ">"}


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"structured_outputs": {"json": SCHEMA}}, {"json": SCHEMA}),
        ({"structured_outputs": {"regex": "a+"}}, {"regex": "a+"}),
        ({"guided_grammar": 'root ::= "a"'}, {"grammar": 'root ::= "a"'}),
        ({"response_format": TAG}, {"structural_tag": {"type": "structural_tag", "format": TAG}}),
    ],
)
async def test_a_constraint_is_kept(make_app: MakeApp, fields: dict[str, Any], expected: dict[str, Any]) -> None:
    app, engine = await make_app(say("x"), capable=True)
    body = await whole(await post(app, CHAT, {**HELLO, **fields}))
    assert body["sampling_params"]["structured_outputs"] == expected
    assert (await post(app, GENERATE, body)).status == 200
    await whole(await post(app, "/v1/chat/completions", {**HELLO, **fields}))
    first, second = engine.constraints
    assert first == second != ""


async def test_tool_calls_are_not_constrained_and_that_is_said(make_app: MakeApp) -> None:
    app, _ = await make_app(tool_parser="hermes3")
    tool = {"type": "function", "function": {"name": "f", "parameters": SCHEMA}}
    response = await post(app, CHAT, {**HELLO, "tools": [tool], "tool_choice": "required"})
    assert "sampling_params do not constrain tool calls" in dict(response.headers)["Warning"]
    assert "structured_outputs" not in (await whole(response))["sampling_params"]


WHAT_IS_REFUSED: list[tuple[Any, ...]] = [
    (CHAT, {}, "Messages missing"),
    (CHAT, {**HELLO, "n": 2, "use_beam_search": True}, "beam search cannot be combined with render"),
    (CHAT, {**HELLO, "temperature": 5}, "temperature out of range"),
    (
        CHAT,
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:x"}}]}]},
        "images have no token ids",
    ),
    (COMPLETIONS, {"prompt": "a", "suffix": "b"}, "suffix cannot be combined with render"),
    (COMPLETIONS, {"prompt": [1] * 1000}, "1000 leaves no room to generate within model max length: 1000"),
    (COMPLETIONS, {"prompt": [1] * 1001}, "1001 exceeds model max length: 1000"),
]


async def test_what_is_refused(make_app: MakeApp) -> None:
    app, _ = await make_app()
    for path, fields, message in WHAT_IS_REFUSED:
        response = await post(app, path, fields)
        assert response.status == 400, path
        assert message in (await whole(response))["error"]["message"], path
