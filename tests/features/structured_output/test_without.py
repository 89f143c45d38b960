"""A server without structured output says so if a form is requested; everything else works."""

from __future__ import annotations

import json
from typing import Any

import pytest

from lean_ovms.config import Config
from lean_ovms.manifest import GENAI_GRAMMARS, GRAMMARS
from tests.api.conftest import MakeApp, warnings_of
from tests.fakes import say
from tests.features.structured_output.test_fields import OTHER, TOOL, ask, constraints, error, post

WITHOUT = {"without": "structured_output", "tool_parser": "hermes3"}
SCHEMA = {"type": "object"}
NAMED = {"type": "function", "function": {"name": "f"}}
STRICT = {"type": "function", "function": {**TOOL["function"], "strict": True}}
ASKED = "needs structured output, which is off on this server"
CALL = "a tool_choice that requires a call needs structured output, which is off on this server"


REFUSED: list[tuple[dict[str, Any], str, str]] = [
    ({"response_format": {"type": "json_object"}}, "response_format", f"response_format {ASKED}"),
    ({"structured_outputs": {"json": SCHEMA}}, "structured_outputs", f"structured_outputs {ASKED}"),
    ({"guided_json": SCHEMA}, "guided_json", f"guided_json {ASKED}"),
    ({"guided_choice": ["a"]}, "guided_choice", f"guided_choice {ASKED}"),
    ({"json_schema": SCHEMA}, "json_schema", f"json_schema {ASKED}"),
    ({"grammar": 'root ::= "a"'}, "grammar", f"grammar {ASKED}"),
    ({"tools": [TOOL], "tool_choice": "required"}, "tool_choice", CALL),
    ({"tools": [TOOL, OTHER], "tool_choice": NAMED}, "tool_choice", CALL),
    ({"tools": [STRICT]}, "tools", f"a strict tool {ASKED}"),
]
HELLO: dict[str, Any] = {"messages": [{"role": "user", "content": "hi"}]}
OLLAMAS: list[tuple[str, dict[str, Any]]] = [("/api/chat", HELLO), ("/api/generate", {"prompt": "hi"})]


async def test_what_asks_for_a_form_is_refused_by_the_name_of_each_api(make_app: MakeApp) -> None:
    app, engine = await make_app(say("x"), **WITHOUT)
    for fields, param, message in REFUSED:
        found = await error(await ask(app, **fields))
        assert (found["param"], found["message"]) == (param, message)
    form = {"type": "json_schema", "name": "p", "schema": SCHEMA}
    found = await error(await post(app, "/v1/responses", {"model": "m", "input": "hi", "text": {"format": form}}))
    assert (found["param"], found["message"]) == ("text.format", f"text.format {ASKED}")
    for path, prompt in OLLAMAS:
        response = await post(app, path, {"model": "m", "format": SCHEMA, **prompt})
        assert (response.status, json.loads(response.body)) == (400, {"error": f"format {ASKED}"})
    assert engine.constraints == []


FREE: list[dict[str, Any]] = [
    {"response_format": {"type": "text"}},
    {"grammar": ""},
    {"tools": [TOOL]},
    {"tools": [TOOL], "tool_choice": "auto"},
    {"tools": [TOOL], "tool_choice": "none"},
]


@pytest.mark.parametrize("parser", ["hermes3", "generic"])
async def test_what_asks_for_none_is_answered(make_app: MakeApp, parser: str) -> None:
    options = {"without": "structured_output", "tool_parser": parser}
    assert await constraints(make_app, FREE, **options) == [None] * len(FREE)


async def test_the_grammar_of_a_custom_tool_is_shown_to_the_model(make_app: MakeApp) -> None:
    app, engine = await make_app(say("x"), **WITHOUT)
    form = {"type": "grammar", "syntax": "regex", "definition": "[a-c]+"}
    tool = {"type": "custom", "name": "letters", "format": form}
    response = await post(app, "/v1/responses", {"model": "m", "input": "hi", "tools": [tool]})
    assert response.status == 200
    assert "shown to the model and not enforced" in warnings_of(response)[0]
    assert engine.constraints == [""]


def test_no_engine_has_grammars() -> None:
    config = Config(without="structured_output")
    assert [config.part(seam) for seam in (GRAMMARS, GENAI_GRAMMARS)] == [None, None]
    assert {"guidance", "xgrammar"} <= config.composition.left_out.keys()
