"""What is kept of a client's messages, and the form in which a template gets them."""

from __future__ import annotations

import json

import pytest

from lean_ovms.text.template.chat_template import TemplateSettings
from lean_ovms.text.template.messages import Capabilities, ToolNeeds, prepare, prepare_tools, with_ids
from lean_ovms.types import ChatPrompt
from tests.text.template.template_cases import (
    EVERY_ROLE,
    READ_PARTS,
    STRING_ARGUMENTS,
    TEMPLATES,
    TOKENS,
    ChatTemplate,
    compiled,
)

TEXT = Capabilities()


def one(message, capabilities=TEXT):
    return prepare([message], capabilities)[0]


def part(text):
    return {"type": "text", "text": text}


IMAGE = {"type": "image_url", "image_url": {"url": "x"}}


def test_known_fields_are_kept_and_others_dropped():
    message = {
        "role": "assistant", "content": "x", "name": "n", "tool_call_id": "i", "reasoning_content": "r",
        "refusal": "no", "audio": {}, "function_call": {}, "weight": 1,
    }  # fmt: skip
    assert one(message) == {
        "role": "assistant",
        "content": "x",
        "name": "n",
        "tool_call_id": "i",
        "reasoning_content": "r",
    }
    assert one({"role": "assistant", "content": "x", "reasoning": "r"})["reasoning_content"] == "r"
    assert one({**message, "reasoning": "other"})["reasoning_content"] == "r"
    wrong = {
        "role": "user",
        "content": "x",
        "name": 1,
        "tool_call_id": None,
        "reasoning_content": ["r"],
        "tool_calls": "t",
    }
    assert one(wrong) == {"role": "user", "content": "x"}


@pytest.mark.parametrize(
    ("content", "kept"),
    [
        ("text", "text"),
        ("", ""),
        (None, ""),
        ([], ""),
        ([{"type": "refusal", "refusal": "no"}, part("b")], "no\nb"),
        (5, ""),
        ({"a": 1}, ""),
        ([part("a")], "a"),
        ([part("a"), part(""), part("b")], "a\n\nb"),
        ([part(""), part("b")], "b"),
        ([part("a"), IMAGE], [part("a"), IMAGE]),
    ],
)
def test_content_for_a_template_that_reads_strings(content, kept):
    assert one({"role": "user", "content": content}) == {"role": "user", "content": kept}


def test_absent_content_is_empty():
    assert one({"role": "user"}) == {"role": "user", "content": ""}


def test_content_for_a_template_that_reads_parts():
    both = Capabilities(parts=frozenset({"user"}))
    assert one({"role": "user", "content": [part("a"), part("b")]}, both)["content"] == [part("a"), part("b")]
    assert one({"role": "user", "content": "a"}, both)["content"] == "a"
    assert one({"role": "tool", "content": [part("a"), part("b")]}, both)["content"] == "a\nb"
    only = Capabilities(strings=False)
    assert one({"role": "user", "content": [part("a"), part("b")]}, only)["content"] == [part("a"), part("b")]
    assert one({"role": "user", "content": "a"}, only)["content"] == [part("a")]
    assert one({"role": "user", "content": None}, only)["content"] == [part("")]
    assert one({"role": "user", "content": [{"type": "refusal", "refusal": "no"}]}, both)["content"] == [part("no")]


def test_no_content_is_said_as_the_template_bears_it():
    for nothing in (None, []):
        message = {"role": "assistant", "content": nothing, "tool_calls": [{"function": "x"}]}
        assert one(message)["content"] is None
        assert "content" not in one(message, Capabilities(null="missing"))
        assert one(message, Capabilities(null="empty"))["content"] == ""
        assert one(message, Capabilities(null="empty", strings=False))["content"] == [part("")]


def test_a_refusal_beside_no_content_is_the_content():
    for nothing in ({"content": None}, {"content": ""}, {}):
        assert one({"role": "assistant", "refusal": "no", **nothing})["content"] == "no"
    assert one({"role": "assistant", "refusal": "no", "content": "x"})["content"] == "x"


def test_tool_calls_are_copied_verbatim_and_empty_ones_removed():
    calls = [{"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}", "more": 1}, "extra": 2}]
    assert one({"role": "assistant", "content": "", "tool_calls": calls})["tool_calls"] == calls
    assert "tool_calls" not in one({"role": "assistant", "content": "", "tool_calls": []})


CUT = '{"a": "x'
ARGUMENTS = [
    (None, {}),
    ("", {}),
    (" ", {}),
    ("null", {}),
    ('""', {}),
    ('{"a": 1}', {"a": 1}),
    ('"{\\"a\\": 1}"', {"a": 1}),
    ({"a": "é"}, {"a": "é"}),
    (CUT, CUT),
    ("{", "{"),
    ("[1]", "[1]"),
    ([1], "[1]"),
    ("5", "5"),
    (5, "5"),
    ("words", "words"),
    ("[" * 100_000, "[" * 100_000),
]
"""Arguments as clients send them, with their meaning: an object, or a text that is not one."""


def arguments_of(given, **capabilities):
    call = {"function": {"name": "f"} if given == "absent" else {"name": "f", "arguments": given}}
    message = {"role": "assistant", "content": "", "tool_calls": [call]}
    return one(message, Capabilities(**capabilities))["tool_calls"][0]["function"]["arguments"]


@pytest.mark.parametrize(("arguments", "meant"), [("absent", {}), *ARGUMENTS])
def test_arguments_get_the_form_that_the_template_reads(arguments, meant):
    wrapped = meant if isinstance(meant, dict) else {"arguments": meant}
    assert arguments_of(arguments, arguments="object") == meant
    assert arguments_of(arguments, arguments="object", raw_arguments=False) == wrapped
    text = arguments_of(arguments, arguments="string", raw_arguments=False)
    assert isinstance(text, str)
    assert json.loads(text) == wrapped
    text = arguments_of(arguments, arguments="string")
    assert text == meant if isinstance(meant, str) else json.loads(text) == meant
    kept = arguments_of(arguments, arguments="any")
    assert kept == (arguments if isinstance(arguments, str) and arguments.startswith("{") else meant)


def test_the_spelling_of_arguments_is_kept_where_text_is_read():
    assert arguments_of('{"a":1.0}', arguments="string") == '{"a":1.0}'
    assert arguments_of({"a": "é"}, arguments="string") == '{"a": "é"}'


@pytest.mark.parametrize("call", ["x", {"function": "x"}, {}, None])
def test_malformed_calls_pass_as_they_are(call):
    message = {"role": "assistant", "content": "", "tool_calls": [call]}
    for form in ("object", "string", "any"):
        assert one(message, Capabilities(arguments=form))["tool_calls"] == [call]


def calls(*names, ids=()):
    given = [{"function": {"name": name, "arguments": {}}} for name in names]
    known = [call | {"id": own} for call, own in zip(given, ids, strict=True)] if ids else given
    return {"role": "assistant", "tool_calls": known}


RESULTS = [
    ([calls("f", "g", ids=("a", "b"))], [{"tool_call_id": "b"}, {"tool_call_id": "a"}], ["b", "a"]),
    ([calls("f", "f", ids=("a", "b"))], [{"tool_call_id": "b", "name": "f"}, {"name": "f"}], ["b", "a"]),
    ([calls("f", "g")], [{"name": "g"}, {}], ["call_2", "call_1"]),
    ([calls("f"), {"role": "tool"}, calls("g")], [{"tool_call_id": "x"}], ["call_2"]),
    ([calls("f", ids=(7,))], [{"tool_call_id": 7}], ["7"]),
    ([calls("f", ids=("a",)), {"role": "user"}], [{"tool_call_id": "a"}, {"tool_call_id": "x"}], ["a", "x"]),
    ([calls("f", ids=("a",))], [{}, {}], ["a", "a"]),
]


@pytest.mark.parametrize(("before", "results", "ids"), RESULTS)
def test_a_result_has_the_id_of_its_call(before, results, ids):
    found = with_ids([*before, *({"role": "tool", "content": "x", **result} for result in results)])
    assert [message["tool_call_id"] for message in found[len(before) :]] == ids


def test_members_of_tools_that_are_null_are_left_out_and_those_that_a_template_reads_are_added():
    values = {"enum": [None, {"a": None}], "default": None, "const": None}
    schema = {"type": "object", "properties": {"type": {"description": None, **values}, "x": True}, "required": None}
    tool = {"type": "function", "function": {"name": "f", "description": None, "parameters": schema}}
    [found] = prepare_tools([tool], ToolNeeds())
    plain = {"type": "object", "properties": {"type": values, "x": True}}
    assert found == {"type": "function", "function": {"name": "f", "parameters": plain}}
    members = {"description": "", "parameters": {"required": []}}
    needs = ToolNeeds(members=members, properties={"title": ""}, default_texts=True)
    [found] = prepare_tools([tool], needs)
    filled = {"type": {"title": "", **values, "default": "null"}, "x": True}
    assert found["function"]["parameters"] == {**plain, "properties": filled, "required": []}
    assert found["function"]["description"] == ""
    assert prepare_tools([{"type": "other"}, 5], needs) == [{"type": "other"}, 5]


def test_reasoning_is_copied_to_thinking_where_that_is_read():
    message = {"role": "assistant", "content": "", "reasoning_content": "r"}
    several = one(message, Capabilities(reasoning_names=("thinking", "tool_plan")))
    assert (several["reasoning_content"], several["thinking"], several["tool_plan"]) == ("r", "r", "r")
    assert "thinking" not in one(message)
    assert "thinking" not in one({"role": "assistant", "content": ""}, Capabilities(reasoning_names=("thinking",)))


# --- probes --------------------------------------------------------------------------------------------------------


def capabilities_of(source):
    return ChatTemplate(source, special_tokens=TOKENS).capabilities


ALIKE = ("devstral", "qwen3", "qwen3_30b", "qwen3vl")
"""Families whose templates render arguments as an object and as a text alike."""
REASONING = {"lfm25": ("thinking",), "gpt_oss": ("thinking",), "gemma": ("reasoning",)}


@pytest.mark.parametrize("family", list(TEMPLATES))
@pytest.mark.slow
def test_what_the_model_families_templates_read(family):
    found = compiled(family).capabilities
    assert found.strings
    assert found.parts - {"developer"} == READ_PARTS.get(family, set())
    assert found.arguments == ("string" if family in STRING_ARGUMENTS else "any" if family in ALIKE else "object")
    assert found.reasoning_names == REASONING.get(family, ())


LOOP = "{% for m in messages %}{% for c in m.content %}{{ c.text }}{% endfor %}{% endfor %}"


def test_a_template_that_reads_only_parts():
    found = capabilities_of(LOOP)
    assert (found.parts, found.strings) == ({*EVERY_ROLE, "developer"}, False)
    template = ChatTemplate(LOOP)
    assert template.render(ChatPrompt(messages=[{"role": "user", "content": "Hi"}])) == "Hi"


@pytest.mark.parametrize(
    "source",
    [
        "{% for m in messages %}{{ m.content }}{% endfor %}",
        "{% for m in messages %}{{ m.content | tojson }}{% endfor %}",
        "{% for m in messages %}{{ m.content | trim }}{% endfor %}",
        "{{ raise_exception('always') }}",
        "nothing",
    ],
)
def test_a_template_that_reads_strings(source):
    found = capabilities_of(source)
    assert (found.parts, found.strings) == (set(), True)


def test_the_operator_may_know_better():
    parts, text = [part("a"), part("b")], "{% for m in messages %}{{ m.content }}{% endfor %}"
    prompt = ChatPrompt(messages=[{"role": "user", "content": parts}, {"role": "user", "content": "c"}])
    assert (
        ChatTemplate(text, settings=TemplateSettings(content_format="openai")).render(prompt) == f"{parts}{[part('c')]}"
    )
    assert (
        ChatTemplate(LOOP.replace("c.text", "c"), settings=TemplateSettings(content_format="string")).render(prompt)
        == "a\nbc"
    )


@pytest.mark.parametrize(
    ("use", "form"),
    [
        ("{{ f.arguments.items() | list }}", "object"),
        ("{{ 'args: ' + f.arguments }}", "string"),
        ("{{ f.name }}", "any"),
        ("{{ '<parameter=' + (f.arguments | list | first) + '>' if f.arguments is mapping }}", "object"),
    ],
)
def test_the_form_of_arguments_by_what_does_not_fail(use, form):
    source = (
        "{% for m in messages %}{% for t in m.tool_calls or [] %}{% set f = t.function %}"
        + use
        + "{% endfor %}{% endfor %}"
    )
    assert capabilities_of(source).arguments == form


CALLS = "{% for m in messages %}{% if m.tool_calls %}call{% endif %}"


@pytest.mark.parametrize(
    ("source", "null"),
    [
        ("{% for m in messages %}{% if m.content is not none %}{{ m.content }}{% endif %}{% endfor %}", "null"),
        ("{% for m in messages %}{{ m.content }}{% endfor %}", "missing"),
        ("{% for m in messages %}{{ m.content + '.' }}{% endfor %}", "empty"),
        (CALLS + "{{ m.content + '.' if not (m.tool_calls and loop.last) }}{% endfor %}", "empty"),
        ("{% for m in messages %}{{ raise_exception('no calls') if m.tool_calls }}{{ m.content }}{% endfor %}", "null"),
    ],
)
def test_no_content_is_probed_within_a_conversation(source, null):
    assert capabilities_of(source).null == null


def test_a_template_that_writes_calls_only_with_tools_is_probed_with_tools():
    source = "{% for m in messages %}{% if tools %}{{ m.tool_calls | default([]) | tojson }}{% endif %}{% endfor %}"
    assert capabilities_of(source).arguments == "object"
