"""Fields for the form of an answer: which grammar they become, what is rejected, what gets a warning."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any

import pytest

from lean_ovms.api.app import App
from lean_ovms.errors import GrammarInvalid, GrammarTooComplex, RequestError, from_wire
from lean_ovms.features.guidance.child import library
from lean_ovms.features.structured_output import limits
from lean_ovms.features.structured_output.child import queue
from lean_ovms.types import Response
from lean_ovms.types.engine import EngineRequest
from tests.api.conftest import MakeApp, events, post, warnings_of, whole
from tests.fakes import FakeEngine, say

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
HELLO = [{"role": "user", "content": "hi"}]
POINT = {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]}
TOOL = {"type": "function", "function": {"name": "f", "parameters": POINT}}
OTHER = {"type": "function", "function": {"name": "g", "parameters": POINT}}


async def ask(app: App, path: str = CHAT, **fields: Any) -> Response:
    said = {"messages": HELLO} if path == CHAT else {"prompt": "hi"}
    return await post(app, path, {"model": "m", **said, **fields})


async def error(response: Response) -> dict[str, Any]:
    found = await whole(response)
    assert response.status == 400, found
    detail: dict[str, Any] = found["error"]
    return detail


async def constraints(
    make_app: MakeApp, bodies: Iterable[dict[str, Any]], path: str = CHAT, **options: Any
) -> list[Any]:
    """Returns the format that the engine gets for each body, None for none, and checks that there are no warnings."""
    app, engine = await make_app(lambda *_: say("x"), **{"tool_parser": "hermes3", **options})
    found = []
    for fields in bodies:
        engine.constraints.clear()
        response = await ask(app, path, **fields)
        assert response.status == 200, await whole(response)
        await whole(response)
        assert warnings_of(response) == []
        found.append(parsed(engine))
    return found


async def constraint(make_app: MakeApp, options: dict[str, Any] | None = None, **fields: Any) -> Any:
    """Returns the format for one body."""
    [found] = await constraints(make_app, [fields], **(options or {}))
    return found


def parsed(engine: FakeEngine) -> Any:
    (text,) = engine.constraints
    return json.loads(text)["format"] if text else None


def schema_format(**members: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": members}


JSON_FORMS = [
    {"response_format": schema_format(name="p", schema=POINT, strict=True)},
    {"response_format": schema_format(**POINT)},
    {"structured_outputs": {"json": POINT}},
    {"structured_outputs": {"json": json.dumps(POINT)}},
    {"structured_outputs": {"json": POINT, "disable_any_whitespace": True}},
    {"response_format": {"type": "json_object", "schema": POINT}},
    {"response_format": {"type": "json_object", "value": POINT}},
    {"response_format": {"type": "json", "value": POINT}},
    {"guided_json": POINT},
    {"guided_json": json.dumps(POINT)},
    {"json_schema": POINT, "grammar": ""},
]


@pytest.mark.parametrize("path", [CHAT, TEXT])
async def test_a_schema_is_imposed_however_it_is_written(make_app: MakeApp, path: str) -> None:
    found = await constraints(make_app, JSON_FORMS, path)
    assert found == [schema_format(**POINT, additionalProperties=False)] * len(JSON_FORMS)


FREE = [{}, {"grammar": ""}, {"response_format": None}, {"response_format": {"type": "text"}},
        {"structured_outputs": None},
        {"tools": [TOOL]}, {"tools": [TOOL], "tool_choice": "auto"}, {"tools": [TOOL], "tool_choice": "none"},
        {"tool_choice": "auto"}]  # fmt: skip


async def test_nothing_is_imposed_that_was_not_asked_for(make_app: MakeApp) -> None:
    assert await constraints(make_app, FREE) == [None] * len(FREE)


CHOICE = {"type": "or", "elements": [{"type": "const_string", "value": "a"}, {"type": "const_string", "value": "b"}]}
REGEX = {"type": "regex", "pattern": "a+"}
EBNF = {"type": "grammar", "grammar": 'root ::= "a"'}
LARK = {"type": "grammar", "grammar": 'start: "a"+'}
TAGGED = {"type": "tag", "begin": "<a>", "content": {"type": "any_text"}, "end": "</a>"}
AS_IT_COMES = [
    ({"response_format": {"type": "regex", "pattern": "a+"}}, REGEX),
    ({"response_format": {"type": "regex", "value": "a+"}}, REGEX),
    ({"response_format": {"type": "json_schema", "json_schema": True}}, {"type": "json_schema", "json_schema": True}),
    ({"response_format": {"type": "const_string", "value": "a"}}, {"type": "const_string", "value": "a"}),
    ({"response_format": TAGGED}, TAGGED),
    ({"response_format": {"type": "structural_tag", "format": TAGGED}}, TAGGED),
    ({"response_format": {"type": "sequence", "elements": [REGEX, schema_format(**POINT)]}},
     {"type": "sequence", "elements": [REGEX, schema_format(**POINT, additionalProperties=False)]}),
    ({"response_format": {"type": "json_object"}}, schema_format(type="object", additionalProperties=True)),
    ({"structured_outputs": {"json_object": True}}, schema_format(type="object", additionalProperties=True)),
    ({"structured_outputs": {"structural_tag": json.dumps({"type": "structural_tag", "format": TAGGED})}}, TAGGED),
    ({"structured_outputs": {"regex": "a+"}}, REGEX),
    ({"structured_outputs": {"grammar": "root ::= a"}}, {"type": "grammar", "grammar": "root ::= a"}),
    ({"structured_outputs": {"choice": ["a", "b", "a"]}}, CHOICE),
    ({"guided_regex": "a+"}, REGEX),
    ({"grammar": EBNF["grammar"]}, EBNF),
    ({"guided_grammar": "root ::= a"}, {"type": "grammar", "grammar": "root ::= a"}),
    ({"guided_choice": ["a", "b"]}, CHOICE),
    ({"regex": "a+"}, REGEX),
    ({"ebnf": EBNF["grammar"]}, EBNF),
    ({"guided_grammar": 'start: "a"+'}, LARK),
    ({"structured_outputs": {"grammar": 'start: "a"+'}, "guided_grammar": 'start: "a"+'}, LARK),
    ({"structured_outputs": {"regex": "a+"}, "guided_regex": "a+", "response_format": None}, REGEX),
]  # fmt: skip


@pytest.mark.parametrize("path", [CHAT, TEXT])
async def test_formats_pass_as_they_are(make_app: MakeApp, path: str) -> None:
    found = await constraints(make_app, [fields for fields, _ in AS_IT_COMES], path)
    assert found == [expected for _, expected in AS_IT_COMES]


async def test_vllms_older_structural_tag_becomes_triggered_tags(make_app: MakeApp) -> None:
    old = {
        "type": "structural_tag",
        "structures": [{"begin": "<a>", "schema": POINT, "end": "</a>"}],
        "triggers": ["<a"],
    }
    found = await constraint(make_app, response_format=old)
    assert (found["type"], found["triggers"]) == ("triggered_tags", ["<a"])
    assert found["tags"][0]["content"] == schema_format(**POINT, additionalProperties=False)


# --- what is wrong


async def test_a_response_format_that_cannot_be_imposed_is_dropped_with_a_warning(make_app: MakeApp) -> None:
    for path, form in (
        (CHAT, {"type": "nope"}),
        (CHAT, schema_format(name="x")),
        (CHAT, {"type": "json_schema", "json_schema": 5}),
        (CHAT, {"type": "json_object", "schema": 5}),
        (CHAT, {"type": "json_object", "value": [POINT]}),
        ("/v3/chat/completions", schema_format(name="x", schema={"type": "nope"})),
        (CHAT, {"type": "sequence", "elements": [{**schema_format(type="object"), "style": []}]}),
        (CHAT, {"type": "sequence", "elements": ["x"]}),
        (CHAT, {"type": "or", "elements": [[REGEX]]}),
        (CHAT, {"type": "optional", "content": None}),
    ):
        app, engine = await make_app(say("x"))
        response = await post(app, path, {"model": "m", "messages": HELLO, "response_format": form})
        assert (await whole(response))["choices"][0]["message"]["content"] == "x"
        assert engine.constraints == [""]
        assert len(warnings_of(response)) == 1
        assert warnings_of(response)[0].startswith("response_format was not enforced: ")


NO_SCHEMA = {"type": "object", "properties": {"a": {"type": "objct"}}}
NO_SCHEMAS: list[tuple[str, Any]] = [
    ("response_format", schema_format(name="x", schema=NO_SCHEMA)),
    ("response_format", {"type": "json_object", "schema": NO_SCHEMA}),
    ("response_format", {"type": "sequence", "elements": [schema_format(**NO_SCHEMA)]}),
    ("structured_outputs", {"json": NO_SCHEMA}),
    ("guided_json", NO_SCHEMA),
    ("json_schema", NO_SCHEMA),
    ("tools", [{"type": "function", "function": {"name": "f", "parameters": NO_SCHEMA, "strict": True}}]),
]


async def test_a_schema_that_is_none_is_refused_with_its_place(make_app: MakeApp) -> None:
    app, _ = await make_app(lambda *_: say("x"))
    for param, value in NO_SCHEMAS:
        found = await error(await ask(app, **{param: value}))
        assert (found["param"], found["code"]) == (param, "grammar_invalid")
        assert "'objct' at #/properties/a/type is not a type" in found["message"]
    _, strict = NO_SCHEMAS[-1]
    loose = {"type": "function", "function": {"name": "f", "parameters": NO_SCHEMA}}
    assert (await ask(app, tools=[loose])).status == 200
    body = {"model": "m", "messages": HELLO, "tools": strict}
    assert (await post(app, "/v3/chat/completions", body)).status == 200, "OVMS ignores what is strict"


EXPECTED = r"response_format was not enforced: a 'quote'\r\nX-Evil: 1 \u017e"


@pytest.mark.parametrize("stream", [False, True])
async def test_what_the_engine_cannot_compile_is_dropped_with_a_warning(make_app: MakeApp, stream: bool) -> None:
    app, engine = await make_app(say("x"))
    engine.bad_grammar = GrammarInvalid('a "quote"\r\nX-Evil: 1 ž')
    response = await ask(app, response_format={"type": "regex", "pattern": "("}, stream=stream)
    assert response.status == 200
    assert engine.constraints == [""]
    (warning,) = warnings_of(response)
    assert warning == EXPECTED
    if stream:
        await events(response)
    else:
        await whole(response)


@pytest.mark.parametrize("form", [{"type": "nope"}, {"type": "regex", "pattern": "("}])
async def test_strict_response_format_makes_it_an_error(make_app: MakeApp, form: dict[str, Any]) -> None:
    app, engine = await make_app(say("x"), strict_response_format=True)
    engine.bad_grammar = GrammarInvalid("no")
    found = await error(await ask(app, response_format=form))
    assert found["code"] == "grammar_invalid"
    assert found["param"].startswith("response_format")
    assert engine.submitted == []


async def test_strict_response_format_counts_keywords_that_are_not_imposed(make_app: MakeApp) -> None:
    form = schema_format(name="x", schema={"type": "array", "uniqueItems": True})
    app, engine = await make_app(say("x"), strict_response_format=True)
    engine.notices = ["uniqueItems"]
    assert "uniqueItems" in (await error(await ask(app, response_format=form)))["message"]
    assert not engine.mail.busy
    app, engine = await make_app(say("x"))
    engine.notices = ["uniqueItems"]
    response = await ask(app, response_format=form)
    await whole(response)
    assert "uniqueItems" in warnings_of(response)[0]
    assert engine.constraints != [""]


DEEP: Any = {}
for _ in range(100):
    DEEP = {"items": DEEP}
IMPOSSIBLE: list[tuple[dict[str, Any], GrammarInvalid | GrammarTooComplex | None, str, str]] = [
    ({"response_format": REGEX}, GrammarTooComplex("much"), "grammar_too_complex", "response_format"),
    ({"response_format": schema_format(name="x", schema=DEEP)}, None, "grammar_too_complex", "response_format"),
    ({"response_format": schema_format(enum=["y" * 1000])}, None, "grammar_too_complex", "response_format"),
    ({"guided_regex": "("}, GrammarInvalid("no"), "grammar_invalid", "guided_regex"),
    ({"tools": [TOOL], "tool_choice": "required"}, GrammarTooComplex("much"), "grammar_too_complex", "tool_choice"),
]


async def test_what_is_too_complex_and_what_must_be_imposed_are_errors(make_app: MakeApp) -> None:
    app, engine = await make_app(say("x"), tool_parser="hermes3", grammar_max_bytes=1000)
    for fields, reason, code, param in IMPOSSIBLE:
        engine.bad_grammar = reason
        found = await error(await ask(app, **fields))
        assert (found["code"], found["param"]) == (code, param)
        assert engine.submitted == []


async def test_only_the_tool_whose_schema_is_too_large_is_not_enforced(
    make_app: MakeApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    app, engine = await make_app(lambda *_: say("x"), tool_parser="hermes3")
    submit = engine.submit

    async def checked(request: EngineRequest) -> Any:
        limits.check(request.constraint, limits.GrammarBounds(bytes=1 << 19))
        return await submit(request)

    monkeypatch.setattr(engine, "submit", checked)
    digits = {"type": "object", "properties": {"v": {"type": "number", "multipleOf": 0.12343}}}
    large = {"type": "function", "function": {"name": "large", "parameters": digits}}
    for fields in ({"tool_choice": "required"}, {"response_format": REGEX}):
        response = await ask(app, tools=[TOOL, large], **fields)
        assert response.status == 200
        why = "The grammar is too complex for this server: multipleOf 0.12343 has too many digits"
        assert warnings_of(response) == [f"the schema of the tool large is not enforced: {why}"]
        found = engine.constraints.pop()
        assert "multipleOf" not in found
        assert json.dumps(TOOL["function"]["parameters"]["properties"])[1:-1] in found


class Reader:
    """A checker that reads and compiles grammars with llguidance."""

    def check(self, tag: str, bounds: limits.GrammarBounds) -> limits.GrammarCost:
        limits.check(tag, bounds)
        library.validate(library.read(json.loads(tag)).text)
        return limits.GrammarCost(0.01, 1)

    def stop(self) -> None:
        pass


UNCOMPILABLE = {
    "type": "object",
    "properties": {"v": {"type": "string", "minLength": 3, "maxLength": 2}},
    "required": ["v"],
}


LIST = {"type": "array", "items": {"type": "string", "pattern": "("}}


@pytest.mark.parametrize("parser", ["hermes3", "qwen3coder", "pythonic"])
async def test_only_the_tools_whose_schemas_cannot_be_compiled_are_not_enforced(
    make_app: MakeApp, monkeypatch: pytest.MonkeyPatch, parser: str
) -> None:
    app, engine = await make_app(lambda *_: say("x"), tool_parser=parser)
    submit = engine.submit

    async def compiled(request: EngineRequest) -> Any:
        check, reader = queue.GrammarCheck(request.constraint, most_s=60), Reader()
        found = check.proceed(reader, limits.GrammarBounds(bytes=1 << 19))
        while check.unfinished:
            check.proceed(reader, limits.GrammarBounds(bytes=1 << 19))
        if isinstance(found, RequestError):
            raise from_wire(found.to_wire())
        return await submit(request)

    monkeypatch.setattr(engine, "submit", compiled)
    schemas = {"bad": UNCOMPILABLE, "worse": {**UNCOMPILABLE, "properties": {"v": LIST}}}
    bad = [{"type": "function", "function": {"name": name, "parameters": one}} for name, one in schemas.items()]
    count = {"type": "object", "properties": {"v": {"type": "integer", "maximum": 10}}}
    good = {"type": "function", "function": {"name": "good", "parameters": count}}
    response = await ask(app, tools=[bad[0], good, bad[1]], tool_choice="required")
    assert response.status == 200
    found = warnings_of(response)
    assert [re.findall("the schema of the tool ([a-z]+) is not enforced", one) for one in found] == [["bad"], ["worse"]]
    assert found[0].partition(": ")[2] != found[1].partition(": ")[2]  # each has its own reason
    tag = engine.constraints.pop()
    assert '"maximum": 10' in tag
    assert '"maxLength"' not in tag
    with_format = await ask(app, tools=[bad[0], good], response_format=schema_format(**POINT), tool_choice="auto")
    assert len(warnings_of(with_format)) == 1
    tag = engine.constraints.pop()
    assert '"x"' in tag
    assert '"maximum": 10' in tag
    refused = await error(await ask(app, tools=[good], json_schema=UNCOMPILABLE))
    assert (refused["code"], refused["param"]) == ("grammar_invalid", "json_schema")


WRONG = [
    ({"response_format": "json"}, "response_format"),
    ({"structured_outputs": {}}, "structured_outputs"),
    ({"structured_outputs": {"json": {}, "regex": "a"}}, "structured_outputs"),
    ({"structured_outputs": {"regex": 5}}, "structured_outputs.regex"),
    ({"structured_outputs": {"choice": []}}, "structured_outputs.choice"),
    ({"structured_outputs": {"choice": [""]}}, "structured_outputs.choice"),
    ({"structured_outputs": {"choice": [1]}}, "structured_outputs.choice"),
    ({"structured_outputs": {"json": "{"}}, "structured_outputs.json"),
    ({"guided_choice": "yes"}, "guided_choice"),
    ({"guided_regex": ""}, "guided_regex"),
    ({"regex": 5}, "regex"),
    ({"ebnf": ""}, "ebnf"),
    ({"guided_json": 5}, "guided_json"),
    ({"structured_outputs": {"grammar": "a: A"}, "guided_grammar": "a: B"}, "guided_grammar"),
    ({"grammar": 5}, "grammar"),
    ({"grammar": "root ::= (", "json_schema": {}}, "grammar"),
    ({"guided_json": {}, "guided_regex": "a"}, "guided_regex"),
    ({"response_format": {"type": "json_object"}, "guided_json": {}}, "guided_json"),
    *(({"tools": [TOOL], "tool_choice": {"type": "allowed_tools", "allowed_tools": allowed}}, "tool_choice")
      for allowed in ({}, {"mode": "none", "tools": []}, {"mode": "auto", "tools": []},
                      {"mode": "auto", "tools": [{"type": "function"}]},
                      {"mode": "auto", "tools": [{"type": "function", "function": {"name": "nope"}}]})),
]  # fmt: skip


async def test_wrong_fields_are_named(make_app: MakeApp) -> None:
    app, _ = await make_app()
    assert [(await error(await ask(app, **fields)))["param"] for fields, _ in WRONG] == [param for _, param in WRONG]


# --- tools


def named(form: dict[str, Any]) -> list[str]:
    """Returns the functions that may be called, in order."""
    calls = form["elements"][0] if form["type"] == "sequence" else form
    return re.findall(r'"name": "(\w+)"', "".join(call["begin"] for call in calls.get("tags", [calls])))


def chosen(mode: str, *tools: Any) -> dict[str, Any]:
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": [*tools]}}


NAMED_G: Any = {"type": "function", "function": {"name": "g"}}
CHOICES: list[tuple[Any, list[str], str]] = [
    ("required", ["f", "g"], "sequence"),
    (NAMED_G, ["g"], "tag"),
    ({"type": "function", "name": "g"}, ["g"], "tag"),
    (chosen("required", NAMED_G), ["g"], "sequence"),
]


async def test_a_choice_forces_calls_of_its_tools(make_app: MakeApp) -> None:
    both = {"tools": [TOOL, OTHER], "response_format": {"type": "json_object"}}
    found = await constraints(make_app, [{**both, "tool_choice": choice} for choice, _, _ in CHOICES])
    assert [(named(form), form["type"]) for form in found] == [(names, kind) for _, names, kind in CHOICES]
    calls = found[0]["elements"][0]
    assert (calls["type"], calls["at_least_one"], calls["most"]) == ("tags_with_separator", True, 32)
    assert await constraint(make_app, tools=[TOOL, OTHER], tool_choice=chosen("auto", NAMED_G)) is None
    one = await constraint(make_app, tools=[TOOL], tool_choice="required", parallel_tool_calls=False)
    assert one["type"] == "tag"


TWO_CALLS = (
    '<tool_call>{"name": "f", "arguments": {"x": 1}}</tool_call>\n<tool_call>{"name": "g", "arguments": {}}</tool_call>'
)


async def test_without_a_grammar_parallel_tool_calls_false_ends_the_answer_before_a_second(make_app: MakeApp) -> None:
    app, _ = await make_app(say(*TWO_CALLS), tool_parser="hermes3")
    fields = {"tools": [TOOL, OTHER], "parallel_tool_calls": False}
    choice = (await whole(await ask(app, **fields)))["choices"][0]
    assert [c["function"]["name"] for c in choice["message"]["tool_calls"]] == ["f"]
    assert choice["finish_reason"] == "tool_calls"
    app, _ = await make_app(say(*TWO_CALLS), tool_parser="hermes3")
    sent = await events(await ask(app, stream=True, **fields))
    assert sent[-1] == "[DONE]"
    names = [
        c["function"].get("name") for e in sent[:-1] for p in e["choices"] for c in p["delta"].get("tool_calls", ())
    ]
    assert [name for name in names if name] == ["f"]
    assert [p["finish_reason"] for e in sent[:-1] for p in e["choices"]][-1] == "tool_calls"


async def test_half_a_call_before_a_second_is_no_call_to_run(make_app: MakeApp) -> None:
    """Clients run what an answer calls whose finish_reason is tool_calls."""
    broken = TWO_CALLS.replace('{"x": 1}', '{"x": "a"b"}')
    app, _ = await make_app(say(*broken), tool_parser="hermes3")
    fields = {"tools": [TOOL, OTHER], "parallel_tool_calls": False, "logprobs": True, "return_token_ids": True}
    choice = (await whole(await ask(app, **fields)))["choices"][0]
    [call] = choice["message"]["tool_calls"]
    assert (call["function"]["name"], call["function"]["arguments"]) == ("f", '{"x": "a"b"}')
    assert choice["finish_reason"] == "stop"
    assert len(choice["logprobs"]["content"]) == len(choice["token_ids"])


async def test_text_after_a_required_call_ends_the_answer(make_app: MakeApp) -> None:
    said = ("So", *TWO_CALLS.partition("\n"), "\nIt", " is sunny.", "\n", TWO_CALLS)
    for choice, calls, text in (("required", ["f", "g"], "So"), ("auto", ["f", "g", "f", "g"], "So\nIt is sunny.\n")):
        app, _ = await make_app(say(*said), tool_parser="hermes3")
        answer = (await whole(await ask(app, tools=[TOOL, OTHER], tool_choice=choice)))["choices"][0]
        assert [call["function"]["name"] for call in answer["message"]["tool_calls"]] == calls
        assert (answer["message"]["content"] or "", answer["finish_reason"]) == (text, "tool_calls")


async def test_guided_generation_shapes_calls_that_the_model_begins(make_app: MakeApp) -> None:
    options = {"enable_tool_guided_generation": True}
    assert (await constraint(make_app, options=options, tools=[TOOL]))["type"] == "triggered_tags"
    assert await constraint(make_app, options=options) is None


async def test_a_strict_tool_shapes_calls_unless_it_cannot(make_app: MakeApp) -> None:
    strict = {"type": "function", "function": {**TOOL["function"], "strict": True}}  # type: ignore[dict-item]
    bare = {"type": "function", "function": {"name": "g", "strict": True}}
    assert (await constraint(make_app, tools=[strict, bare]))["type"] == "triggered_tags"
    assert await constraint(make_app, tools=[strict], best_of=2) is None
    assert await constraint(make_app, tools=[strict], min_tokens=1) is None
    assert await constraint(make_app, options={"capable": True}, tools=[strict], best_of=2, min_tokens=1)


async def test_a_call_or_an_answer_in_the_format_when_both_are_asked_for(make_app: MakeApp) -> None:
    found = await constraint(make_app, tools=[TOOL], response_format={"type": "json_object"})
    assert [part["type"] for part in found["elements"]] == ["sequence", "json_schema"]
    found = await constraint(make_app, tools=[TOOL], response_format={"type": "regex", "pattern": "a+"})
    assert found["type"] == "or"
    assert found["elements"][1] == REGEX


FORMS: list[tuple[str, Any]] = [
    ("structured_outputs", {"regex": "a"}),
    ("guided_choice", ["a"]),
    ("json_schema", {}),
    ("grammar", 'root ::= "a"'),
]


async def test_a_grammar_of_the_answer_is_refused_where_a_call_is_required(make_app: MakeApp) -> None:
    app, engine = await make_app(say("x"), tool_parser="hermes3")
    for choice in ("required", {"type": "function", "function": {"name": "f"}}):
        for name, value in FORMS:
            found = await error(await ask(app, tools=[TOOL], tool_choice=choice, **{name: value}))
            assert (found["param"], engine.submitted) == (name, [])


@pytest.mark.parametrize("without", [{"tool_parser": "none"}, {"without": "model_families"}])
async def test_a_model_whose_calls_are_not_read_cannot_be_forced(make_app: MakeApp, without: dict[str, Any]) -> None:
    text = '<tool_call>{"name": "f", "arguments": {}}</tool_call>'
    app, engine = await make_app(say(text), **without)
    for choice in ("required", {"type": "function", "function": {"name": "f"}}):
        found = await error(await ask(app, tools=[TOOL], tool_choice=choice))
        assert (found["param"], "--tool_parser none" in found["message"]) == ("tool_choice", "tool_parser" in without)
        assert found["message"].startswith("tool_choice requires a call, but no tool parser is set for this model")
    assert engine.submitted == []
    assert text in str(await whole(await ask(app, tools=[TOOL])))


async def test_a_request_that_turns_its_parser_off_is_told_so(make_app: MakeApp) -> None:
    app, _ = await make_app(say("x"), tool_parser="hermes3")
    response = await ask(app, tools=[TOOL], tool_choice="required", skip_special_tokens=False)
    await whole(response)
    assert warnings_of(response) == [
        "tool calls are not enforced: skip_special_tokens is false, so reasoning and tool calls are not parsed"
    ]


async def test_what_is_not_imposed_is_counted(make_app: MakeApp) -> None:
    app, _ = await make_app(say("x"), metrics_enable=True)
    await whole(await ask(app, response_format={"type": "regex", "pattern": "a"}))
    await whole(await ask(app, tools=[TOOL], tool_choice="required", skip_special_tokens=False))
    text = app.registry.models["m"].metrics.expose().decode()
    assert 'lean_ovms_structured_output_not_imposed_total{model_name="m"} 1' in text
