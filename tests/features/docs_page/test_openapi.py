"""The OpenAPI document has every route, every field as it is validated, and responses as they are sent."""

from __future__ import annotations

import re
from typing import Any

import orjson
import pytest
from jsonschema import Draft202012Validator

from lean_ovms.api import router
from lean_ovms.api.app import App
from lean_ovms.api.fields import doc_of, read_one
from lean_ovms.api.router import imported
from lean_ovms.api.schemas import field_schema
from lean_ovms.composition import compose
from lean_ovms.errors import BadRequest
from lean_ovms.features.docs_page.openapi import fields_of, references
from tests.api.conftest import MakeApp, get, post, whole

BODIES = [fields_of(doc_of(imported(route)), compose()) for route in compose().routes]
ALL_FIELDS = {id(field): field for fields in BODIES for field in fields}.values()


async def document(app: App, **headers: str) -> dict[str, Any]:
    response = await get(app, "/openapi.json", **headers)
    assert response.status == 200
    found: dict[str, Any] = await whole(response)
    return found


async def check(app: App, name: str, *values: Any) -> None:
    """Checks that each value matches the schema with this name in the document."""
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
    assert told == {(route.path, route.method) for route in router.every()}


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


def test_a_field_takes_what_its_schema_takes() -> None:
    for row in ALL_FIELDS:
        if row.kind == "any" or row.schema or row.fields or row.read or row.choices or row.required:
            continue
        validator = Draft202012Validator(field_schema(row))
        for value in VALUES:
            try:
                read_one(row, value)
                taken = True
            except BadRequest:
                taken = False
            assert validator.is_valid(value) is taken, (row.name, value)


async def test_models_are_named_and_the_key_is_described_where_it_is_required(make_app: MakeApp) -> None:
    app, _ = await make_app()
    told = await document(app)
    body = told["paths"]["/v1/chat/completions"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert body["properties"]["model"]["enum"] == ["m", "", None]
    assert body["required"] == ["messages"]
    assert "security" not in told["paths"]["/v1/chat/completions"]["post"]
    app, _ = await make_app(api_key="secret", protect_models=True)
    assert (await get(app, "/openapi.json")).status == 401
    told = await document(app, authorization="Bearer secret")
    assert told["paths"]["/v1/chat/completions"]["post"]["security"] == [{"key": []}]
    assert "401" in told["paths"]["/v1/chat/completions"]["post"]["responses"]
    assert "security" not in told["paths"]["/health"]["get"]


async def test_answers_are_objects_and_their_api_has_the_documentation(make_app: MakeApp) -> None:
    app, _ = await make_app()
    paths = (await document(app))["paths"]
    chat = paths["/v1/chat/completions"]["post"]
    assert chat["responses"]["200"]["content"]["application/json"] == {"schema": {"type": ["object"]}}
    assert "text/event-stream" in chat["responses"]["200"]["content"]
    assert paths["/slots"]["get"]["responses"]["200"]["content"]["application/json"] == {"schema": {"type": ["array"]}}
    assert "content" not in paths["/v2/health/live"]["get"]["responses"]["200"]
    for name, path in (("completions", "/v1/completions"), ("anthropic", "/v1/messages"), ("tei", "/embed")):
        assert paths[path]["post"]["externalDocs"] == {"url": references(compose())[name]}


async def test_errors_are_as_described(make_app: MakeApp) -> None:
    app, _ = await make_app()
    await check(app, "Error", await whole(await get(app, "/nope")))
    await check(app, "AnthropicError", await whole(await post(app, "/v1/messages", {})))


async def test_the_page_is_whole_and_talks_to_nobody_else(make_app: MakeApp) -> None:
    app, _ = await make_app(api_key="secret", protect_models=True)
    response = await get(app, "/docs")
    assert response.status == 200
    assert isinstance(response.body, bytes)
    assert not re.findall(rb"""(?:src|href)=|https?://|@import|\burl\(""", response.body)
    policy = dict(response.headers)["Content-Security-Policy"]
    assert policy.startswith("default-src 'none'")
    assert b"innerHTML" not in response.body
    assert len(response.body) < 20_000


async def test_a_websocket_is_described_by_its_opening(make_app: MakeApp) -> None:
    app, _ = await make_app()
    found = (await document(app))["paths"]["/v1/realtime"]["get"]
    assert "101" in found["responses"]
    assert "200" not in found["responses"]
    assert {"400", "403", "404", "426", "429", "501"} <= found["responses"].keys()
    assert [parameter["name"] for parameter in found["parameters"]] == ["intent", "model"]


async def test_a_feature_that_is_left_out_is_not_in_the_document(make_app: MakeApp) -> None:
    app, _ = await make_app(without="anthropic")
    document = await whole(await get(app, "/openapi.json"))
    assert "/v1/chat/completions" in document["paths"]
    assert not any(path.endswith("/messages") for path in document["paths"])
    assert "AnthropicError" not in document["components"]["schemas"]
