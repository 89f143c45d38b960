"""For every declared field, an invalid value is an error 400 that names the field, in the form of the API."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterator
from typing import Any

import orjson
import pytest

from lean_ovms.api.app import App
from lean_ovms.api.fields import Field, RouteDoc, doc_of, read_one
from lean_ovms.api.generation.common_fields import ACCEPTED, UNSUPPORTED
from lean_ovms.api.router import imported
from lean_ovms.composition import compose
from lean_ovms.features.ollama.fields import OPTIONS
from lean_ovms.types import Json, Request
from tests.every_model import app_with_every_model
from tests.forms import form_request

UNREAD = ("/invocations", "/messages/count_tokens")
"""The first endpoint's body belongs to another path; the second ignores fields that do not change its answer."""
PATHS = {
    (route.bases[0] + route.path).replace("{id}", "0"): doc
    for route in compose().routes
    if route.method == "POST" and route.path not in UNREAD and (doc := doc_of(imported(route))).body
}
GENERATING = ("/v1/chat/completions", "/v1/completions", "/v1/responses")
"""Endpoints that also check fields without an effect."""
VALUES: Json = {"bool": True, "number": 1.5, "string": "no such thing", "object": {"a": 1}, "array": [1.5]}
HELLO: Json = {"messages": [{"role": "user", "content": "x"}]}
NEEDED: dict[str, Json] = {
    "/v1/chat/completions": HELLO,
    "/v1/completions": {"prompt": "x"},
    "/v1/responses": {"input": "x"},
    "/v1/messages": HELLO | {"max_tokens": 5},
    "/v1/chat/completions/batch": {"messages": [HELLO["messages"]]},
    "/prewarm": HELLO,
    "/v1/conversations/0": {"metadata": {}},
}
"""Fields that are checked before the others. In the last one, null is a value: it removes what was there."""


@pytest.fixture
async def app(tmp_path: Any) -> AsyncIterator[App]:
    app = await app_with_every_model(files_path=str(tmp_path), allow_runtime_lora=True)
    await app.open()
    yield app
    await app.close()


def outside(field: Field) -> Iterator[Any]:
    """Returns numbers just out of bounds."""
    for bound, step in ((field.low, -1), (field.high, 1), (field.above, 0), (field.below, 0)):
        if bound is not None:
            yield bound + step
    if field.kind == "uint":
        yield -1


def wrong_values(field: Field, doc: RouteDoc) -> list[Any]:
    """Returns values that the field cannot have. In a form, every text is valid for a string or an array."""
    if field.kind == "any":
        return []
    if doc.form:
        found = [] if field.kind in ("string", "array") else [VALUES["string"]]
    else:
        found = [value for kind, value in VALUES.items() if kind != field.kind]
    if field.kind in ("int", "uint", "number"):
        found += outside(field)
    return [*found, *([VALUES["string"]] if field.choices and field.kind == "string" else [])]


def request(path: str, doc: RouteDoc, fields: Json) -> Request:
    if doc.form:
        return form_request(path, [(name, str(value)) for name, value in fields.items()])
    headers = {"content-type": "application/json"}
    return Request("POST", path, headers=headers, body=orjson.dumps(NEEDED.get(path, {}) | fields))


def test_seeds_and_priorities_have_64_bits_in_every_api() -> None:
    """OpenAI's, vLLM's, llama.cpp's and Ollama's have; clients send time stamps, and random numbers of 64 bits."""
    fields = [field for doc in PATHS.values() for field in doc.body] + [*OPTIONS]
    found = [field for field in fields if field.name in ("seed", "rng_seed", "priority")]
    assert len(found) > 20
    for field in found:
        assert field.kind == "int"
        for value in (1 - 2**63, -1, 2**63 - 1):
            assert read_one(field, value) == value


@pytest.mark.slow
async def test_a_wrong_value_is_a_400_that_names_the_field(app: App) -> None:
    for path, doc in PATHS.items():
        named = {field.name for field in doc.body}
        ignored = [field for field in (*ACCEPTED, *UNSUPPORTED) if field.name not in named]
        fields = (*doc.body, *ignored) if path in GENERATING else doc.body
        for field, value in [(one, value) for one in fields for value in wrong_values(one, doc)]:
            asked = request(path, doc, {field.name: value})
            response = await app.handle(asked)
            assert isinstance(response.body, bytes), (path, field.name, value)
            assert response.status == 400, (path, field.name, value, response.body)
            error = orjson.loads(response.body)["error"]
            if app.config.composition.error_forms.of(asked) is None:
                assert set(error) >= {"message", "type", "param", "code"}
                assert re.split(r"[.\[]", error["param"])[0] == field.name, (path, value, error)
            else:
                text = error if isinstance(error, str) else error["message"]
                assert field.name in text, (path, value, error)


@pytest.mark.slow
async def test_null_is_no_value(app: App) -> None:
    for path, doc in PATHS.items():
        if not doc.form:
            nothing = await app.handle(request(path, doc, {}))
            for field in [field for field in doc.body if field.name not in NEEDED.get(path, {})]:
                response = await app.handle(request(path, doc, {field.name: None}))
                assert response.status == nothing.status, (path, field.name)
                await response.aclose()
            await nothing.aclose()
