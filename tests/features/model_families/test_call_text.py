"""Calls written as text: every family's parser reads back the same calls."""

from __future__ import annotations

import json
from typing import Any

import pytest

from lean_ovms.features.model_families.call_text import WrittenCall, calls_text
from lean_ovms.features.model_families.registry import registry
from lean_ovms.types import Json
from tests.features.model_families.test_any_cut import parse

ARGUMENTS: Json = {"city": "Pa ris", "days": 3, "exact": True, "none": None, "at": {"lat": [1.5, "x"]}}
KINDS = ("string", "integer", "boolean", "null", "object")
PROPERTIES = {name: {"type": kind} for name, kind in zip(ARGUMENTS, KINDS, strict=True)}
TOOLS: list[Json] = [
    {"type": "function", "function": {"name": name, "parameters": {"type": "object", "properties": PROPERTIES}}}
    for name in ("f", "g")
]


@pytest.mark.parametrize("family", registry().tool_names)
def test_a_parser_reads_the_calls_that_its_form_writes(family: str) -> None:
    form = registry().output_form(family, None).calls
    assert form is not None
    calls = [WrittenCall("f", ARGUMENTS), *([] if form.alone else [WrittenCall("g", {})])]
    answer = parse(registry().make(family, None, tools=TOOLS), [form.forced + calls_text(form, calls)])
    assert [(name, json.loads(text)) for name, text in answer.calls] == calls
    assert not answer.content.strip()


@pytest.mark.parametrize(
    ("family", "call"),
    [
        (None, WrittenCall("f", {"a": 1})),
        ("hermes3", WrittenCall("f", '{"a": "x')),
        ("pythonic", WrittenCall("f", {"from-date": 1})),
        ("qwen3coder", WrittenCall("a name", {})),
    ],
)
def test_what_a_form_cannot_write_is_plain_json(family: str | None, call: WrittenCall) -> None:
    form = registry().output_form(family, None).calls
    written: Any = json.loads(calls_text(form, [call]))
    assert written == {"name": call.name, "arguments": call.arguments}
