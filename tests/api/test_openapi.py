"""The OpenAPI document: every route, every field as it is validated, answers as they are given."""

from __future__ import annotations

import re
from typing import Any

import orjson
import pytest
from jsonschema import Draft202012Validator

from lean_ovms.api.app import App
from lean_ovms.api.cohere import embed
from lean_ovms.api.fields import Field, read_one
from lean_ovms.api.openai import chat_request, completions, embeddings
from lean_ovms.api.openai.audio import transcriptions, translations
from lean_ovms.api.openai.responses import fields as responses
from lean_ovms.api.openapi import schema
from lean_ovms.api.router import collect
from lean_ovms.api.vllm import classify, pooling, rerank, score, tokenize
from lean_ovms.errors import BadRequest
from tests.api.conftest import MakeApp, MakePooling, ask, events, get, parts, post, whole
from tests.fakes import say

HELLO: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
ENDPOINTS = {
    "chat": chat_request,
    "completions": completions,
    "responses": responses,
    "tokenize": tokenize,
    "embeddings": embeddings,
    "embed": embed,
    "rerank": rerank,
    "score": score,
    "classify": classify,
    "pooling": pooling,
    "transcriptions": transcriptions,
    "translations": translations,
}
ALL_FIELDS = {
    f"{field.name} of {name}": field
    for name, module in ENDPOINTS.items()
    for field in getattr(module, "ALL_FIELDS", module.FIELDS)
}


async def document(app: App, **headers: str) -> dict[str, Any]:
    response = await get(app, "/openapi.json", **headers)
    assert response.status == 200
    found: dict[str, Any] = await whole(response)
    return found


async def check(app: App, name: str, *values: Any) -> None:
    """Each of values is what the document says of the schema of that name."""
    validator = Draft202012Validator({"$ref": f"#/components/schemas/{name}", **await document(app)})
    for value in values:
        validator.validate(value)


async def test_every_route_is_described(make_app: MakeApp) -> None:
    app, _ = await make_app()
    paths = (await document(app))["paths"]
    told = {
        (re.sub(r"\{\w+\}", "{id}", path), method.upper())
        for shown, item in paths.items()
        for path in (shown, *item.get("x-also", ()))
        for method in item
        if method != "x-also"
    }
    assert told == {(route.path, route.method) for route in collect()}


@pytest.mark.slow
async def test_the_document_holds_together(make_app: MakeApp) -> None:
    app, _ = await make_app()
    told = await document(app)
    operations = [op for item in told["paths"].values() for name, op in item.items() if name != "x-also"]
    assert all(op["summary"] for op in operations)
    assert len({op["operationId"] for op in operations}) == len(operations)
    for reference in re.findall(r'"\$ref":"#/components/schemas/(\w+)"', orjson.dumps(told).decode()):
        assert reference in told["components"]["schemas"]
    for op in operations:
        if "requestBody" in op:
            for content in op["requestBody"]["content"].values():
                Draft202012Validator.check_schema(content["schema"])
    for one in told["components"]["schemas"].values():
        Draft202012Validator.check_schema(one)


VALUES = [
    *(None, True, False, 0, 1, -1, 2, 3, 0.5, 2.5, -2.5, 21, 41, 5000, 2**31, 2**32, 2**40, "", "auto", "left", "xyz"),
    *([], ["a"], [1], [-1], [""], [2**33], [[1]], {}, {"a": "b"}, {"a": 1}, {"id": "x"}, {"type": "text"}, [{}]),
    *([{"role": "user", "content": "x"}], [{"role": 5}], {"format": {"type": "text"}}),
]


PLAIN = {n: r for n, r in ALL_FIELDS.items() if r.kind != "any" and not (r.schema or r.fields or r.read or r.required)}


@pytest.mark.parametrize("row", PLAIN.values(), ids=PLAIN)
def test_a_row_takes_what_its_schema_takes(row: Field) -> None:
    validator = Draft202012Validator(schema(row))
    for value in VALUES:
        try:
            read_one(row, value)
            taken = True
        except BadRequest:
            taken = False
        assert validator.is_valid(value) is taken, value


async def test_models_are_named_and_the_key_is_described_where_it_is_required(make_app: MakeApp) -> None:
    app, _ = await make_app()
    told = await document(app)
    body = told["paths"]["/v1/chat/completions"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert body["properties"]["model"]["enum"] == ["m", None]
    assert body["required"] == ["messages"]
    assert "security" not in told["paths"]["/v1/chat/completions"]["post"]
    app, _ = await make_app(api_key="secret", protect_models=True)
    assert (await get(app, "/openapi.json")).status == 401
    told = await document(app, authorization="Bearer secret")
    assert told["paths"]["/v1/chat/completions"]["post"]["security"] == [{"key": []}]
    assert "401" in told["paths"]["/v1/chat/completions"]["post"]["responses"]
    assert "security" not in told["paths"]["/v1/health"]["get"]


TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
CALL = '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'


@pytest.mark.parametrize(
    "more",
    [{}, {"n": 2, "logprobs": True}, {"return_token_ids": True}, {"stop": "b"}, {"tools": TOOLS}],
    ids=str,
)
async def test_chat_answers_are_as_described(make_app: MakeApp, more: dict[str, Any]) -> None:
    script = ("<think>h</think>", CALL) if "tools" in more else ("a", "b", "c")
    options = {"tool_parser": "hermes3", "reasoning_parser": "qwen3"}
    app, _ = await make_app(lambda _, sampling: say(*script, sequences=sampling.n), **options)
    await check(app, "ChatCompletion", await whole(await post(app, "/v1/chat/completions", {**HELLO, **more})))
    stream = {**HELLO, **more, "stream": True, "stream_options": {"include_usage": True}}
    chunks = (await events(await post(app, "/v1/chat/completions", stream)))[:-1]
    assert chunks
    await check(app, "ChatCompletionChunk", *chunks)


async def test_other_answers_are_as_described(make_app: MakeApp) -> None:
    app, _ = await make_app(lambda _, sampling: say("a", "b", sequences=sampling.n))
    prompt = {"model": "m", "prompt": "x", "logprobs": 0, "echo": True}
    await check(app, "Completion", await whole(await post(app, "/v1/completions", prompt)))
    chunks = (await events(await post(app, "/v1/completions", {**prompt, "stream": True})))[:-1]
    assert chunks
    await check(app, "Completion", *chunks)
    kept = await whole(await post(app, "/v1/responses", {"model": "m", "input": "x"}))
    await check(app, "Response", kept)
    text = b"".join(
        [p async for p in parts(await post(app, "/v1/responses", {"model": "m", "input": "x", "stream": True}))]
    )
    found = re.findall(rb"^data: (\{.*\})$", text, re.M)
    assert found
    await check(app, "ResponseEvent", *map(orjson.loads, found))
    await check(app, "Items", await whole(await get(app, f"/v1/responses/{kept['id']}/input_items")))
    await check(
        app, "InputTokens", await whole(await post(app, "/v1/responses/input_tokens", {"model": "m", "input": "x"}))
    )
    await check(app, "Models", await whole(await get(app, "/v1/models")))
    await check(app, "Tokens", await whole(await post(app, "/v1/tokenize", {"model": "m", "text": ["a", "b"]})))
    await check(app, "Text", await whole(await post(app, "/v1/detokenize", {"model": "m", "tokens": [65]})))
    await check(app, "Conversation", await whole(await post(app, "/v1/conversations", {})))
    await check(app, "ModelStates", await whole(await get(app, "/v1/config")))
    await check(app, "Error", await whole(await get(app, "/nope")))


@pytest.mark.parametrize(
    ("task", "name", "path", "body"),
    [
        ("embeddings", "Embeddings", "/v1/embeddings", {"input": ["a", "b"]}),
        ("embeddings", "Embeddings", "/v1/embeddings", {"input": [97], "encoding_format": "base64"}),
        (
            "embeddings",
            "EmbeddingsByType",
            "/v2/embed",
            {"texts": ["a"], "embedding_types": ["float", "int8", "uint8", "binary", "ubinary", "base64"]},
        ),
        ("embeddings", "EmbeddingsFloats", "/v1/embed", {"texts": ["a"]}),
        ("embeddings", "EmbeddingsFloats", "/v1/embed", {"texts": ["a"], "embedding_types": ["int8"]}),
        ("rerank", "Rerank", "/v1/rerank", {"query": "a", "documents": ["a", "b"]}),
        ("rerank", "Rerank", "/v3/rerank", {"query": "a", "documents": ["a", "b"], "top_n": 1}),
        ("rerank", "Scores", "/v1/score", {"text_1": "a", "text_2": ["a", "b"]}),
        ("classify", "Classes", "/v1/classify", {"input": "a"}),
        ("embeddings", "Pooled", "/v1/pooling", {"input": "a"}),
        ("embeddings", "Pooled", "/v1/pooling", {"input": "a", "task": "token_embed"}),
        ("token_classify", "Pooled", "/v1/pooling", {"input": "a"}),
    ],
)
async def test_answers_of_pooling_models_are_as_described(
    make_pooling: MakePooling, task: str, name: str, path: str, body: dict[str, Any]
) -> None:
    app, _ = await make_pooling(task)
    await check(app, name, await ask(app, path, **body))


async def test_the_page_is_whole_and_talks_to_nobody_else(make_app: MakeApp) -> None:
    app, _ = await make_app(api_key="secret", protect_models=True)
    response = await get(app, "/docs")
    assert response.status == 200
    assert isinstance(response.body, bytes)
    assert not re.findall(rb"""(?:src|href)=|https?://|@import|url\(""", response.body)
    policy = dict(response.headers)["Content-Security-Policy"]
    assert policy.startswith("default-src 'none'")
    assert b"innerHTML" not in response.body
    assert len(response.body) < 16_000


async def test_a_websocket_is_described_by_its_opening(make_app: MakeApp) -> None:
    app, _ = await make_app()
    found = (await document(app))["paths"]["/v1/realtime"]["get"]
    assert "101" in found["responses"]
    assert "200" not in found["responses"]
    assert {"400", "403", "404", "426", "429", "501"} <= found["responses"].keys()
    assert [parameter["name"] for parameter in found["parameters"]] == ["intent", "model"]
