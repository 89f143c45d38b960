"""Values of XML-like calls that contain the markup of calls: what ends a value, and what is part of it.

Calls are written with the families' own forms for grammars, so text that a grammar allows is read as it was meant.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from lean_ovms.features.model_families.key_value_calls import KeyValueOrJson
from lean_ovms.features.model_families.registry import registry
from lean_ovms.features.model_families.xml_calls import XmlCalls
from lean_ovms.features.structured_output.constraint import build
from lean_ovms.grammar.call_syntax import GrammarContext
from lean_ovms.types import Json, OutputConstraint
from tests.cases import few_fast
from tests.features.model_families.test_any_cut import CompletedChoice, parse

FAMILIES = [
    *("deepseek_v32", "deepseek_v4", "deepseek_v41", "dots", "glm4_moe", "hy_v3", "hy_v4", "k2_horizon", "minicpm5"),
    *("kimi_k3", "minimax_m2", "onyx", "qwen3coder", "seed_oss", "step3"),
]
OPEN_ENDED = ("deepseek_v32", "deepseek_v4", "deepseek_v41", "dots", "minimax_m2", "qwen3coder", "seed_oss")
STRING: Json = {"type": "string"}
TOOL: Json = {
    "type": "function",
    "function": {
        "name": "w",
        "parameters": {
            "type": "object",
            "properties": {"a": STRING, "b": STRING, "n": {"type": "integer"}},
            "required": ["a", "b"],
        },
    },
}


def written(family: str, *values: str) -> str:
    """Returns a call with these values of a and b in the family's form."""
    form = registry().output_form(family, None)
    context = GrammarContext(form=form, prompt_tail="", tools=(TOOL,), parallel=False)
    asked = OutputConstraint(tool_calls="required")
    left = iter(values)
    return _written(json.loads(build(asked, context).tag)["format"], left)


def _written(form: Any, values: Iterator[str]) -> str:
    kind = form["type"]
    if kind == "tag":
        return str(form["begin"] + _written(form["content"], values) + form["end"])
    if kind == "sequence":
        return "".join(_written(part, values) for part in form["elements"])
    if kind == "const_string":
        return str(form["value"])
    return {"any_text": lambda: next(values), "optional": lambda: "", "regex": lambda: "1"}[kind]()


def syntax(family: str) -> XmlCalls:
    """Returns the reader of a family's elements."""
    (found,) = (one for one in registry().make(family, None, tools=[TOOL]).syntaxes if one.tools)  # type: ignore[attr-defined]
    if isinstance(found, KeyValueOrJson):
        found = found._elements
    inner = getattr(found, "_readers", {"": found})
    reader = next(iter(inner.values()))
    assert isinstance(reader, XmlCalls)
    return reader


def read(family: str, text: str, size: int = 0) -> CompletedChoice:
    pieces = [text[at : at + size] for at in range(0, len(text), size)] if size else [text]
    return parse(registry().make(family, None, tools=[TOOL]), pieces)


def values_with_markup(family: str) -> dict[str, str]:
    """Returns values that are read completely, by the markup in them."""
    reader = syntax(family)
    end, (key, *_) = reader.value_end, list(reader.keys)
    values = {
        "its end": f"a {end} b",
        "its end at a line's end": f"a{end}\n\n b",
        "its end twice": f"a{end}{end} b",
        "its end at the beginning": f"{end} b",
        "a beginning of a parameter": f"a {key} b",
        "its end and a part of a parameter's": f"a {end} {key[:-3]} b",
        "half an end": f"a {end[:-1]} b",
        "the call's end": f"if x:\n{reader.ends[0]}\nend",
        "both ends": f"x {end} y {reader.ends[0]} z",
    }
    if reader.block_end:
        values["all ends but its own"] = f"if x:\n{reader.ends[0]}\n{reader.block_end}\nend"
    return values


@pytest.mark.parametrize("family", few_fast(FAMILIES))
def test_markup_in_a_value_is_text_of_it(family: str) -> None:
    for name, value in values_with_markup(family).items():
        for pair in ((value, "x"), ("x", value)):
            text = written(family, *pair)
            whole = read(family, text)
            assert whole.content == "", (name, text)
            assert [(call, json.loads(given)) for call, given in whole.calls] == [
                ("w", {"a": pair[0], "b": pair[1]})
            ], (name, text)
            for size in (1, 2, 3, 7):
                assert read(family, text, size) == whole, (name, size)


@pytest.mark.parametrize("family", FAMILIES)
def test_text_after_an_end_that_did_not_count_is_not_held_back(family: str) -> None:
    value_end = syntax(family).value_end
    head = written(family, f"a {value_end} bcd\0", "x").partition("\0")[0]
    answer, parser = CompletedChoice(), registry().make(family, None, tools=[TOOL])
    answer.add(parser.feed(head))
    assert answer.calls == [
        ["w", json.dumps({"a": f"a {value_end} bcd"}, ensure_ascii=False, separators=(",", ":"))[:-2]]
    ]


def test_an_end_in_a_string_of_nested_elements_is_text() -> None:
    text = written("minimax_m3", "a ]<]minimax[>[</a> b", "x")
    whole = read("minimax_m3", text)
    assert [json.loads(given) for _, given in whole.calls] == [{"a": "a ]<]minimax[>[</a> b", "b": "x"}]
    assert read("minimax_m3", text, 1) == whole


@pytest.mark.parametrize("family", OPEN_ENDED)
def test_a_value_without_its_end_ends_at_the_next_parameter_or_with_the_call(family: str) -> None:
    end = syntax(family).value_end
    text = written(family, "a\n", "b\n").replace(end, "")
    assert [json.loads(given) for _, given in read(family, text).calls] == [{"a": "a", "b": "b"}] or (
        [given.replace("\\n", "") for _, given in read(family, text).calls] == ['{"a":"a","b":"b"}']
    )


@pytest.mark.parametrize("family", FAMILIES)
def test_a_call_is_whole_when_text_stands_before_its_end(family: str) -> None:
    """The end tag of the value did not count, but that of the call does, because nothing follows it."""
    reader = syntax(family)
    text = written(family, "a", "b")
    at = text.rindex(reader.value_end) + len(reader.value_end)
    answer = read(family, text[:at] + " then " + text[at:])
    assert [name for name, _ in answer.calls] == ["w"]
    assert set(json.loads(answer.calls[0][1])) == {"a", "b"}


@pytest.mark.parametrize("family", ["glm4_moe", "hy_v3", "k2_horizon"])
def test_a_value_without_its_begin_is_read(family: str) -> None:
    reader = syntax(family)
    begin = reader.value_end.replace("</", "<")
    text = written(family, "how many days", "x < y").replace(begin, "")
    assert [json.loads(given) for _, given in read(family, text).calls] == [{"a": "how many days", "b": "x < y"}]


@pytest.mark.parametrize("family", ["hermes3", "qwen3coder", "glm4_moe"])
def test_a_call_in_reasoning_that_has_no_end_is_a_call_in_each_form_that_the_family_reads(family: str) -> None:
    forms = ['<tool_call>\n{"name": "w", "arguments": {}}\n</tool_call>']
    if family == "glm4_moe":
        forms += ["<tool_call>w\n</tool_call>", "<tool_call>w</tool_call>"]
    for form in forms:
        parser = registry().make(family, "qwen3", tools=[TOOL], prompt_tail="<think>\n")
        answer = parse(parser, list(f"Hm {form}"))
        assert (answer.reasoning, answer.content, answer.calls) == ("Hm ", "", [["w", "{}"]]), form
    parser = registry().make(family, "qwen3", tools=[TOOL], prompt_tail="<think>\n")
    text = "Between <tool_call>a</tool_call> stands a call."
    assert parse(parser, [text]).reasoning == text
