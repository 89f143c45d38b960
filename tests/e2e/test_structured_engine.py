"""Grammars on the real engine: whatever the model would say, the output has the requested form.

jsonschema, Python's `re` and the family's own parser check it. High temperatures make the model generate random text,
so that it explores what a grammar allows. The text depends on the CPU's precision; the assertions must not.
tests/features/xgrammar compares the masks of the other library with those of this one.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Iterable
from dataclasses import replace
from typing import Any

import jsonschema
import pytest
import pytest_asyncio

from lean_ovms.config import Config
from lean_ovms.engine.client.engine import EngineClient
from lean_ovms.errors import GrammarInvalid, GrammarTooComplex
from lean_ovms.features.model_families.registry import registry
from lean_ovms.features.structured_output import constraint
from lean_ovms.grammar.call_syntax import GrammarContext
from lean_ovms.text.decode.detokenizer import Detokenizer
from lean_ovms.types import Json, OutputConstraint, Reasoning, SamplingParams, Text, ToolCallDelta, ToolCallStart
from tests.streams import pieces

pytestmark = [pytest.mark.model, pytest.mark.asyncio(loop_scope="module")]

WORDS = {"type": "string", "maxLength": 12}
# All values fit into the token limit, whatever is generated; an unbounded number may have digits to the end.
TOOL: Json = {
    "type": "object",
    "properties": {
        "city": WORDS,
        "unit": {"enum": ["celsius", "fahrenheit"]},
        "days": {"type": "integer", "minimum": 1, "maximum": 14},
        "precise": {"type": "boolean"},
        "tags": {"type": "array", "items": {"type": "integer", "minimum": -99, "maximum": 999}, "maxItems": 3},
        "place": {
            "type": "object",
            "properties": {"lat": {"enum": [-89.5, 0, 0.25, 90]}, "name": {"enum": ["a", None]}},
            "required": ["lat", "name"],
        },
    },
    "required": ["unit", "days", "place"],
}
PLAIN: Json = {
    "type": "object",
    "properties": {"days": {"type": "integer", "minimum": 1, "maximum": 14}, "on": {"type": "boolean"}},
    "required": ["days"],
}
TOOLS: list[Json] = [
    {"type": "function", "function": {"name": "get_weather", "description": "The weather.", "parameters": TOOL}},
    {"type": "function", "function": {"name": "wait", "parameters": PLAIN}},
    {"type": "function", "function": {"name": "now"}},
]


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def engine() -> AsyncIterator[EngineClient]:
    # The time limit is high, because results are tested here, also on busy machines.
    engine = EngineClient(Config(grammar_timeout_s=30))
    await engine.start()
    yield engine
    await engine.stop()


async def generate(
    engine: EngineClient,
    tag: str,
    *,
    seed: int = 1,
    temperature: float = 1.5,
    most: int = 600,
    asked: str = "Say something.",
) -> tuple[str, str]:
    """Returns text with its special tokens, and the finish reason."""
    sampling = SamplingParams(max_tokens=most, temperature=temperature, seeds=(seed,))
    reply = await engine.submit(
        f"<|im_start|>user\n{asked}<|im_end|>\n<|im_start|>assistant\n",
        add_special_tokens=False,
        truncate=None,
        want_tokens=False,
        sampling=sampling,
        constraint=tag,
    )
    detokenizer = Detokenizer(engine.vocabulary, skip_special_tokens=False)
    text, reason = "", ""
    try:
        async for records in pieces(reply):
            for record in records:
                tokens = [t for t in record.tokens if t not in engine.info.eos_token_ids]
                text += detokenizer.feed(tokens)
                reason = record.reason or reason
    finally:
        reply.cancel()
    return text + detokenizer.flush(), reason


def context(
    tool: str | None = None, reasoning: str | None = None, tail: str = "", tools: list[Json] | None = None
) -> GrammarContext:
    return GrammarContext(form=registry().output_form(tool, reasoning), prompt_tail=tail, tools=tuple(tools or ()))


def parse(
    text: str, tool: str | None, reasoning: str | None, tools: list[Json], tail: str = ""
) -> tuple[str, str, list[list[str]]]:
    """Returns content, reasoning and calls as the server would report them."""
    parser = registry().make(tool, reasoning, tools=tools, prompt_tail=tail)
    content, thought, calls = "", "", []
    for event in [*parser.feed(text), *parser.finish()]:
        if isinstance(event, Text):
            content += event.text
        elif isinstance(event, Reasoning):
            thought += event.text
        elif isinstance(event, ToolCallStart):
            calls.append([event.name, ""])
        elif isinstance(event, ToolCallDelta):
            calls[event.index][1] += event.text
    return content, thought, calls


def check_calls(calls: list[list[str]], tools: list[Json]) -> None:
    """Checks the names and arguments of calls."""
    schemas = {t["function"]["name"]: t["function"].get("parameters", {"maxProperties": 0}) for t in tools}
    for name, arguments in calls:
        jsonschema.validate(json.loads(arguments), schemas[name])


Answers = dict[str, asyncio.Task[list[tuple[str, str]]]]


async def all_at_once(engine: EngineClient, tags: dict[str, str], asks: Iterable[Json]) -> Answers:
    """Returns what each grammar lets the model say, once for each of `asks`.

    All are generated together, which takes a third of the time of one after the other. What went wrong is raised in
    the test that awaits it.
    """
    few = asyncio.Semaphore(16)  # the engine refuses more new grammars than it can compile soon

    async def several(tag: str) -> list[tuple[str, str]]:
        async with few:
            return [*await asyncio.gather(*(generate(engine, tag, **ask) for ask in asks))]

    tasks = {name: asyncio.create_task(several(tag)) for name, tag in tags.items()}
    await asyncio.wait(tasks.values())
    return tasks


def called(family: str) -> constraint.Constraint:
    return constraint.build(OutputConstraint(tool_calls="required"), context(tool=family, tools=TOOLS))


def called_once(family: str) -> constraint.Constraint:
    setting = replace(context(tool=family, tools=TOOLS[1:2]), parallel=False)
    return constraint.build(OutputConstraint(tool_calls="required"), setting)


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def calls(engine: EngineClient) -> Answers:
    """Returns for each family a text of one call, and one of several with "+" behind the family's name."""
    families = registry().tool_names
    tags = {family: called_once(family).tag for family in families}
    tags |= {f"{family}+": called(family).tag for family in families}
    return await all_at_once(engine, tags, [{"seed": 1}])


@pytest.mark.parametrize("family", registry().tool_names)
async def test_every_family_makes_calls_that_its_own_parser_reads_and_the_schemas_allow(
    calls: Answers, family: str
) -> None:
    assert called(family).notices == []
    [(text, reason)] = await calls[f"{family}+"]
    content, _, found = parse(text, family, None, TOOLS)
    whole = found if reason == "stop" else found[:-1]  # 32 calls may exceed the token limit
    assert whole, text
    assert reason != "stop" or content.strip() == "", text
    check_calls(whole, TOOLS)
    [(text, reason)] = await calls[family]
    content, _, found = parse(text, family, None, TOOLS[1:2])
    assert (reason, content.strip(), [name for name, _ in found]) == ("stop", "", ["wait"])
    check_calls(found, TOOLS[1:2])


SCHEMAS: dict[str, Any] = {
    "anything": {},
    "object": {"type": "object"},
    "closed object": {"type": "object", "properties": {}, "additionalProperties": False},
    "string": {"type": "string", "maxLength": 20},
    "bounds": {"type": "integer", "minimum": -37, "maximum": 1205},
    "open bound": {"type": "integer", "minimum": 99},
    "exclusive": {"type": "integer", "exclusiveMinimum": 3, "exclusiveMaximum": 6},
    "share": {"type": "number", "minimum": 0, "maximum": 1},
    "sliver": {"type": "number", "minimum": 0.25, "maximum": 0.75},
    "below zero": {"type": "number", "minimum": -2.5, "maximum": -0.5},
    "enum": {"enum": ["red", 'a "quoted" one', 3, 1.5, None, True, {"a": [1]}, "žluť\n🚀"]},
    "const": {"const": {"a": ["b", None]}},
    "types": {"type": ["integer", "null"]},
    "any of": {"anyOf": [{"type": "integer", "maximum": 9, "minimum": 0}, {"type": "string", "maxLength": 4}]},
    "one of with siblings": {
        "type": "object",
        "properties": {"a": {"type": "integer"}, "b": {"type": "boolean"}},
        "oneOf": [{"required": ["a"]}, {"required": ["a", "b"], "properties": {"b": {"const": True}}}],
        "additionalProperties": False,
    }
    | {"oneOf": [{"required": ["a", "b"]}]},
    "all of": {
        "allOf": [
            {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]},
            {"properties": {"b": {"type": "string", "maxLength": 5}}, "required": ["b"]},
        ]
    },
    "required": {"type": "object", "properties": {"a": {"type": "null"}, "b": {"type": "null"}}, "required": ["b"]},
    "optional": {"type": "object", "properties": {n: {"type": "boolean"} for n in "abcdef"}},
    "required without a schema": {"type": "object", "properties": {"a": {"type": "null"}}, "required": ["z"]},
    "others": {
        "type": "object",
        "properties": {"ab": {"type": "integer"}, "abc": {"type": "null"}},
        "additionalProperties": {"type": "string", "maxLength": 3},
    },
    "odd names": {
        "type": "object",
        "properties": {'a "b"\\': {"type": "null"}, "ž 1": {"type": "null"}, "": {"type": "null"}},
        "required": ['a "b"\\', "ž 1", ""],
    },
    "tuple": {"type": "array", "prefixItems": [{"type": "null"}, {"type": "boolean"}], "items": False, "minItems": 2},
    "open tuple": {"type": "array", "prefixItems": [{"type": "null"}], "items": {"type": "boolean"}, "maxItems": 4},
    "items": {"type": "array", "items": {"type": "boolean"}, "minItems": 2, "maxItems": 3},
    "pattern": {"type": "string", "pattern": r"^[A-Z]{2}-\d{3}(x|y)?$"},
    "pattern with escapes": {"type": "string", "pattern": r'^["\\/\n]{3}\w\s\S[^a-y]$'},
    "loose pattern": {"type": "string", "pattern": "[ab]c|d+?e"},
    "date-time": {"type": "string", "format": "date-time"},
    "email": {"type": "string", "format": "email"},
    "reference": {"$defs": {"p": {"type": "integer"}}, "type": "array", "items": {"$ref": "#/$defs/p"}, "maxItems": 2},
    "recursive": {
        "$defs": {
            "node": {
                "type": "object",
                "properties": {"v": {"type": "null"}, "next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]}},
                "required": ["v", "next"],
                "additionalProperties": False,
            }
        },
        "$ref": "#/$defs/node",
    },
    "itself": {"type": "array", "items": {"$ref": "#"}, "maxItems": 2},
    "reference with siblings": {
        "$defs": {"p": {"type": "integer"}},
        "type": "object",
        "properties": {"a": {"$ref": "#/$defs/p", "maximum": 5, "minimum": 0}},
        "required": ["a"],
    },
    "nullable": {"type": "integer", "nullable": True, "x": 1} | {"nullable": False},
    "no type": {"properties": {"a": {"minimum": 3}}, "required": ["a"]},
}  # fmt: skip


FREE = (
    "anything", "email", "itself", "loose pattern", "object", "recursive", "required without a schema",
)  # fmt: skip
"""Schemas that allow texts of any length, so that it is luck whether random text ends in time."""

Beginning = jsonschema.validators.extend(
    jsonschema.Draft202012Validator,
    dict.fromkeys(("required", "pattern", "format", "minLength", "minItems"), lambda *_: iter(())),
)
"""A validator for cut text, which ignores `required`, because required members may come after the cut."""


def closed(text: str) -> Any:
    """Returns the longest beginning of a cut JSON text that becomes complete if open strings and brackets are
    closed."""
    for end in range(len(text), 0, -1):
        try:
            return json.loads(text[:end] + _closing(text[:end]))
        except ValueError:
            continue
    raise AssertionError(f"no beginning of JSON: {text!r}")


def _closing(text: str) -> str:
    bare = re.sub(r'"(?:[^"\\]|\\.)*"', "", text, flags=re.DOTALL)  # without complete strings
    inside, quote, _ = bare.partition('"')
    ends: list[str] = []
    for char in inside:
        if char in "[{":
            ends.append("]" if char == "[" else "}")
        elif char in "]}":
            assert ends.pop() == char, text
    return quote + "".join(reversed(ends))


def formed(name: str) -> constraint.Constraint:
    form = {"type": "json_schema", "json_schema": SCHEMAS[name]}
    return constraint.build(OutputConstraint(format=form), context())


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def values(engine: EngineClient) -> Answers:
    tags = {name: formed(name).tag for name in SCHEMAS}
    asks = [{"seed": seed, "temperature": heat, "most": 200} for seed, heat in enumerate((0.0, 1.5, 2.0))]
    return await all_at_once(engine, tags, asks)


@pytest.mark.parametrize("name", SCHEMAS)
async def test_a_schema_gives_what_it_allows(values: Answers, name: str) -> None:
    schema = SCHEMAS[name]
    assert formed(name).notices == []
    checker = jsonschema.Draft202012Validator(schema, format_checker=jsonschema.FormatChecker())
    ended = 0
    for text, reason in await values[name]:
        if reason == "stop":
            ended += 1
            checker.validate(json.loads(text))
        else:
            Beginning(schema).validate(closed(text))
    assert ended or name in FREE


@pytest.mark.parametrize("name", ["anything", "object", "required without a schema"])
async def test_free_json_ends_where_the_model_would_end_it(engine: EngineClient, name: str) -> None:
    wanted = {"name": "Quentin", "age": 41}
    schema = SCHEMAS[name]
    if "required" in schema:
        schema = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name", "age"]}
    tag = constraint.build(OutputConstraint(format={"type": "json_schema", "json_schema": schema}), context()).tag
    asked = "Give me a JSON object with name Quentin and age 41."
    text, reason = await generate(engine, tag, temperature=0, most=100, asked=asked)
    assert (json.loads(text), reason) == (wanted, "stop")


ALIKE = [["1b11b1", "b11", "b1b1"], ["1a", "1b1a1", "1babba", "1bbb", "a11b", "aa", "b1a", "b1babb", "bbba1a"]]


@pytest.mark.parametrize("words", ALIKE)
async def test_choices_that_begin_alike_are_not_mixed_up(engine: EngineClient, words: list[str]) -> None:
    parts = [{"type": "const_string", "value": word} for word in words]
    forms: list[Json] = [
        {"type": "or", "elements": parts},
        {"type": "regex", "pattern": "|".join(words)},
        {"type": "json_schema", "json_schema": {"enum": words}},
        {"type": "json_schema", "json_schema": {"anyOf": [{"const": word} for word in words]}},
    ]
    for form in forms:
        tag = constraint.build(OutputConstraint(format=form), context()).tag
        texts = await asyncio.gather(*(generate(engine, tag, seed=s, temperature=2.0, most=40) for s in range(8)))
        assert {text.strip('"') for text, _ in texts} <= set(words)


async def test_bounds_of_many_digits_are_kept(engine: EngineClient) -> None:
    for low, high in ((-153, 6193425), (2276, 5208875), (-1316, 6873538), (-420, 646883)):
        form = {"type": "json_schema", "json_schema": {"type": "integer", "minimum": low, "maximum": high}}
        tag = constraint.build(OutputConstraint(format=form), context()).tag
        texts = await asyncio.gather(*(generate(engine, tag, seed=s, temperature=2.0, most=40) for s in range(8)))
        assert all(low <= int(text) <= high for text, _ in texts)


THINKING = [("qwen3", ""), ("qwen3", "<|im_start|>assistant\n<think>\n"), ("deepseek_r1", "<｜Assistant｜>")]


@pytest.mark.parametrize(("reasoning", "tail"), THINKING)
async def test_reasoning_comes_before_what_is_constrained(engine: EngineClient, reasoning: str, tail: str) -> None:
    asked = OutputConstraint(
        format={
            "type": "json_schema",
            "json_schema": {"type": "object", "properties": {"a": {"const": 1}}, "required": ["a"]},
        }
    )
    built = constraint.build(asked, context(reasoning=reasoning, tail=tail))
    texts = [generate(engine, built.tag, seed=seed, temperature=0.7, most=300) for seed in range(4)]
    for text, reason in await asyncio.gather(*texts):
        content, thought, _ = parse(text, None, reasoning, [], tail)
        if reason == "stop":
            assert json.loads(content) == {"a": 1}
        else:
            assert thought


async def test_twenty_grammars_at_once_each_hold_for_their_own(engine: EngineClient) -> None:
    patterns = [f"[a-c]{{{i}}}-[0-9]{{3}}" for i in range(1, 21)]
    tags = [constraint.build(OutputConstraint(format={"type": "regex", "pattern": p}), context()).tag for p in patterns]
    free = asyncio.create_task(generate(engine, "", most=100))
    answers = await asyncio.gather(*(generate(engine, tag, most=60) for tag in tags for _ in range(2)))
    assert [bool(re.fullmatch(patterns[i // 2], text)) for i, (text, _) in enumerate(answers)] == [True] * 40
    await free
    stats = await engine.stats()
    assert (stats.running, stats.queued, stats.kv_blocks_used) == (0, 0, 0)


HOSTILE: dict[str, Json] = {
    "long": {"type": "grammar", "grammar": 'root ::= "' + "a" * 400_000 + '"'},
    "counts": {"type": "regex", "pattern": "((a{100}){100}){100}"},
    "huge count": {"type": "regex", "pattern": "a{1,100000}"},
    "brackets": {"type": "regex", "pattern": "(" * 9000 + "a" + ")" * 9000},
    "rules": {
        "type": "grammar",
        "grammar": "root ::= r0\n" + "".join(f'r{i} ::= "a" r{i + 1} | "b"\n' for i in range(9000)) + 'r9000 ::= "x"',
    },
    "slow": {"type": "regex", "pattern": "([a-z]{1,140}){1,140}"},
    "enum": {"type": "json_schema", "json_schema": {"enum": [f"v{i}" for i in range(6000)]}},
    "length": {"type": "json_schema", "json_schema": {"type": "string", "maxLength": 1000000}},
    "multiple": {"type": "json_schema", "json_schema": {"type": "integer", "multipleOf": 9999991}},
}  # fmt: skip


async def test_a_hostile_grammar_is_refused_while_others_go_on() -> None:
    # A fast machine takes 0.5 s for the smallest of these.
    engine = EngineClient(Config(grammar_timeout_s=0.1))
    await engine.start()
    try:
        before = engine.pid
        expected, _ = await generate(engine, "", temperature=0, most=200)
        for form in HOSTILE.values():
            neighbours = [asyncio.create_task(generate(engine, "", temperature=0, most=200)) for _ in range(2)]
            tag = json.dumps({"type": "structural_tag", "format": form})
            with pytest.raises((GrammarTooComplex, GrammarInvalid)):
                await asyncio.wait_for(generate(engine, tag), 300)
            for neighbour in neighbours:
                assert (await neighbour)[0] == expected
        ok = constraint.build(OutputConstraint(format={"type": "regex", "pattern": "[a-c]{4}"}), context()).tag
        assert re.fullmatch("[a-c]{4}", (await generate(engine, ok))[0])
        assert engine.pid == before
    finally:
        await engine.stop()
