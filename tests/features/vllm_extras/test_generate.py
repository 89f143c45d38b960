"""/inference/v1/generate: token ids in, token ids out."""

from __future__ import annotations

from typing import Any

import pytest

from lean_ovms.errors import EngineFailure
from tests.api.conftest import MakeApp, events, post, warnings_of, whole
from tests.fakes import EOS, say

PATH = "/inference/v1/generate"


async def test_ids_in_and_ids_out(make_app: MakeApp) -> None:
    app, engine = await make_app(lambda _, sampling: say("ab", "c", sequences=sampling.n))
    fields = {"token_ids": [1, 2, 3], "sampling_params": {"n": 2, "max_tokens": 7}, "request_id": "x", "priority": 4}
    body = await whole(await post(app, PATH, fields))
    expected = {"logprobs": None, "finish_reason": "stop", "token_ids": [*b"abc", EOS]}
    assert body["choices"] == [{"index": index, **expected} for index in (0, 1)]
    assert (body["request_id"], body["model"], body["output_mode"]) == ("generate-tokens-x", "m", "tokens")
    assert (body["usage"]["prompt_tokens"], body["usage"]["completion_tokens"]) == (3, 8)
    [(prompt, sampling)] = engine.submitted
    assert (prompt, sampling.max_tokens, engine.origins[0][2]) == ([1, 2, 3], 7, 4)


async def test_a_stream_has_the_new_ids_in_each_chunk(make_app: MakeApp) -> None:
    app, engine = await make_app(lambda *_: say("ab", "\u00e9", reason="length"))
    fields = {"token_ids": [1], "sampling_params": {}, "stream": True, "stream_options": {"include_usage": True}}
    *chunks, last, done = await events(await post(app, PATH, fields))
    assert done == "[DONE]"
    assert chunks[0]["request_id"].startswith("generate-tokens-")
    assert engine.submitted[0][1].max_tokens is None, "as many as fit"
    assert [token for chunk in chunks for token in chunk["choices"][0]["token_ids"]] == [*b"ab", 0xC3, 0xA9]
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks] == [None, "length"]
    assert all(chunk["usage"] is None for chunk in chunks)
    assert last["choices"] == []
    assert last["usage"]["total_tokens"] == 5
    assert len({chunk["request_id"] for chunk in (*chunks, last)}) == 1
    *chunks, _ = await events(await post(app, PATH, fields | {"stream_options": {"continuous_usage_stats": True}}))
    assert [chunk["usage"]["completion_tokens"] for chunk in chunks] == [2, 4, 4]


@pytest.mark.parametrize("stream", [False, True])
async def test_the_text_too(make_app: MakeApp, stream: bool) -> None:
    app, _ = await make_app(say("ab", "cd"))
    fields = {"token_ids": [1], "sampling_params": {"stop": ["c"]}, "output_mode": "text", "stream": stream}
    fields["sampling_params"] |= {"include_stop_str_in_output": False}
    response = await post(app, PATH, fields)
    bodies = (await events(response))[:-1] if stream else [await whole(response)]
    choices = [body["choices"][0] for body in bodies]
    assert "".join(choice["text"] for choice in choices) == "ab"
    assert {body["output_mode"] for body in bodies} == {"text"}
    assert choices[-1]["finish_reason"] == "stop"


async def test_log_probabilities_name_tokens_by_their_ids(make_app: MakeApp) -> None:
    app, _ = await make_app(say("a"), capable=True)
    params = {"logprobs": 2, "prompt_logprobs": 1}
    fields = {"token_ids": [1, 2], "sampling_params": params}
    body = await whole(await post(app, PATH, fields))
    entry = body["choices"][0]["logprobs"]["content"][0]
    assert (entry["token_id"], entry["token"]) == (ord("a"), f"token_id:{ord('a')}")
    assert [(other["token_id"], other["token"]) for other in entry["top_logprobs"]] == [
        (65, "token_id:65"),
        (66, "token_id:66"),
    ]
    assert body["prompt_logprobs"][0] is None
    assert "2" in body["prompt_logprobs"][1]
    body = await whole(await post(app, PATH, {**fields, "output_mode": "text"}))
    assert body["choices"][0]["logprobs"]["content"][0]["token"] == "a"


async def test_a_failure_in_a_stream_is_an_event(make_app: MakeApp) -> None:
    app, _ = await make_app([[(0, "a", None)], EngineFailure("it broke")])
    fields = {"token_ids": [1], "sampling_params": {}, "stream": True}
    _, error, done = await events(await post(app, PATH, fields))
    assert (error["error"]["message"], done) == ("it broke", "[DONE]")


WHAT_IS_REFUSED: list[tuple[Any, ...]] = [
    ({"token_ids": None}, "token_ids"),
    ({"token_ids": []}, "token_ids"),
    ({"token_ids": [-1]}, "token_ids"),
    ({"token_ids": ["a"]}, "token_ids"),
    ({"token_ids": [999]}, "token_ids"),
    ({"sampling_params": None}, "sampling_params"),
    ({"sampling_params": {"temperature": 5}}, "sampling_params.temperature"),
    ({"sampling_params": {"n": 0}}, "sampling_params.n"),
    ({"output_mode": "chat"}, "output_mode"),
    ({"features": {"mm_hashes": {}}}, "features"),
    ({"stream_options": {"include_usage": True}}, "stream_options"),
]


async def test_what_is_refused(make_app: MakeApp) -> None:
    app, engine = await make_app(say("a"))
    for fields, param in WHAT_IS_REFUSED:
        response = await post(app, PATH, {"token_ids": [1], "sampling_params": {}, **fields})
        assert response.status == 400, fields
        assert (await whole(response))["error"]["param"] == param, fields
        assert not engine.submitted, fields


async def test_other_fields_are_told(make_app: MakeApp) -> None:
    app, _ = await make_app(say("a"))
    params = {"model": "other", "stream": True, "best_of": 2, "detokenize": False}
    fields = {"token_ids": [1], "sampling_params": params, "kv_transfer_params": {"do_remote_decode": True}}
    response = await post(app, PATH, fields)
    warned = " ".join(warnings_of(response))
    assert "kv_transfer_params is not supported" in warned
    assert "detokenize is not supported" in warned
    body = await whole(response)
    assert body["model"] == "m", "what is not of sampling_params has no effect in it"
