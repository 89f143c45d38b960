"""Every template renders every conversation with all of its texts, and never writes `None` for missing ones."""

from __future__ import annotations

import itertools
import json
import re
from functools import cache
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lean_ovms.errors import BadRequest
from lean_ovms.text.template.chat_template import plain_calls
from lean_ovms.text.template.messages import with_ids, with_short_ids
from lean_ovms.types import ChatPrompt, Json
from tests.cases import few_fast
from tests.text.template.template_cases import TEMPLATES, TOKENS, ChatTemplate, assistant, compiled, user

ALTERNATING = (
    "{{ bos_token }}{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}"
    "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('alternate') }}"
    "{% endif %}<{{ m.role }}>{{ m.content | trim }}{% endfor %}"
)
"""The template of the first Gemma: no system message, no tools, and alternating roles."""
LAST_NINE = (
    "{% for m in messages %}{% if m.tool_calls is defined and m.tool_calls is not none %}{% for c in m.tool_calls %}"
    "{% if not c.id is defined or c.id | length < 9 %}{{ raise_exception('ids have 9 characters') }}{% endif %}"
    "{{ c.function | tojson }}{{ c.id[-9:] }}{% endfor %}{% elif m.role == 'tool' %}"
    "{% if not m.tool_call_id is defined or m.tool_call_id | length < 9 %}{{ raise_exception('9') }}{% endif %}"
    "[{{ m.content }}|{{ m.tool_call_id[-9:] }}]{% else %}{{ m.role }}: {{ m.content }};{% endif %}{% endfor %}"
)
"""Mistral's template in vLLM's version: the last nine characters of an id."""
STRICT = (
    "{% for m in messages %}{% if m.tool_calls and m.content and m.thinking %}{{ raise_exception('one') }}{% endif %}"
    "{% if '</think>' in m.content %}{{ raise_exception('pass reasoning apart') }}{% endif %}"
    "{{ m.role }}: {{ m.content }}{% for c in m.tool_calls or [] %}{{ c.function.name }}("
    "{% for k, v in c.function.arguments.items() %}{{ k }}={{ v }},{% endfor %}){% endfor %}"
    "{% if m.role == 'tool' %}{{ ' of ' + m.name }}{% endif %};{% endfor %}"
    "{% for t in tools or [] %}{{ t.function.name + ': ' + t.function.description + t.function.parameters.type }}"
    "{% endfor %}"
)
"""Rejects reasoning beside text and calls, and reasoning tags in a text. Requires objects, and names of results."""
ONLY_FIRST = (
    "{% for m in messages %}{% if m.role == 'system' and loop.first or m.role == 'user' %}{{ m.content + '.' }}"
    "{% elif m.role == 'assistant' %}{{ m.content + '!' }}{% if m.tool_calls %}{{ m.tool_calls[0].function | tojson }}"
    "{% endif %}{% elif m.role == 'tool' and m.content is string %}{{ m.content }}{% endif %}{% endfor %}"
    "{{ tools | tojson if tools }}"
)
"""Silently drops what it does not know, and all calls of a message but the first."""
PICKY = (
    "{% for t in tools %}{{ t.function.name + ': ' }}{% for k, p in t.function.parameters.properties.items() %}"
    "{{ k + p.type + p.description }}{% endfor %}{% endfor %}"
    "{% for m in messages %}{% if m.role == 'assistant' and not m.content and not m.tool_calls %}"
    "{{ raise_exception('an answer has a text or calls') }}{% endif %}[{{ m.role }}]{{ m.content }}"
    "{% for c in m.tool_calls or [] %}{{ c.type + c.id + c.function.name + (c.function.arguments | tojson) }}"
    "{% endfor %}{% endfor %}"
)
"""Requires a list of tools, descriptions and types of all parameters, types of calls, and non-empty answers."""
PARTS = "{% for m in messages %}{{ m.role }}{% for part in m.content %}{{ part.text }}{% endfor %};{% endfor %}"
"""Reads only lists of parts, and no calls."""

SOURCES = {name: path.read_text() for name, path in TEMPLATES.items()} | {
    "alternating": ALTERNATING,
    "last_nine": LAST_NINE,
    "strict": STRICT,
    "only_first": ONLY_FIRST,
    "picky": PICKY,
    "parts": PARTS,
}


class Shape(NamedTuple):
    messages: list[Json]
    words: tuple[str, ...]
    tools: tuple[Json, ...] = ()


def calls(
    *functions: tuple[str, Any], ids: tuple[Any, ...] = ("call_zAYns1CP140lEkMNcy021ayu", "call_2")
) -> list[Json]:
    found = []
    for (name, arguments), call_id in zip(functions, ids, strict=False):
        function = {"name": name} if arguments == "absent" else {"name": name, "arguments": arguments}
        found.append({"id": call_id, "type": "function", "function": function})
    return found


def result(text: Any, call_id: Any = "call_zAYns1CP140lEkMNcy021ayu") -> Json:
    return {"role": "tool", "tool_call_id": call_id, "content": text}


def said(role: str, content: Any) -> Json:
    return {"role": role, "content": content}


SYS, DEV = said("system", "Sys1."), said("developer", "Dev1.")
LATE, LATE_DEV = said("system", "Late1."), said("developer", "LateDev1.")
ASK, ANSWER, NEXT = user("Ask1?"), assistant("Answer1."), user("Next1?")
CALLING = assistant("", tool_calls=calls(("lookup", '{"city": "Oslo1"}')))
TALKING = assistant("Text1.", tool_calls=calls(("lookup", '{"city": "Oslo1"}')))
BOTH = assistant("", tool_calls=calls(("lookup", '{"city": "Oslo1"}'), ("clock", '{"zone": "Zone1"}')))
RESULT, SECOND = result("Result1."), result("Result2.", "call_2")
CALLED = ("lookup", "Oslo1", "Result1.")

ORDERS: dict[str, list[Json]] = {
    "system": [SYS, ASK],
    "developer": [DEV, ASK],
    "two systems": [SYS, said("system", "Sys2."), ASK],
    "two developers": [DEV, said("developer", "Dev2."), ASK],
    "instructions and a developer": [SYS, DEV, ASK],
    "a developer and a system": [DEV, SYS, ASK],
    "a session of an agent": [SYS, DEV, said("developer", "Dev2."), ASK, user("Env1."), ANSWER, LATE_DEV, NEXT],
    "a late system": [SYS, ASK, ANSWER, LATE, NEXT],
    "a late developer": [DEV, ASK, ANSWER, LATE_DEV, NEXT],
    "a late system first": [ASK, LATE, ANSWER, NEXT],
    "a system at the end": [SYS, ASK, ANSWER, LATE],
    "a system behind the user": [ASK, LATE],
    "a system within a call": [ASK, CALLING, RESULT, LATE, NEXT],
    "a system alone": [SYS],
    "a developer alone": [DEV],
    "two users": [ASK, NEXT],
    "two users later": [SYS, ASK, ANSWER, NEXT, user("Again1?")],
    "two answers": [ASK, ANSWER, assistant("More1."), NEXT],
    "an answer first": [ANSWER, ASK],
    "an answer behind the system": [SYS, ANSWER, ASK],
    "an answer alone": [ANSWER],
    "a call": [SYS, ASK, CALLING, RESULT],
    "a call and a developer": [SYS, DEV, ASK, CALLING, RESULT],
    "a user behind a result": [ASK, CALLING, RESULT, NEXT],
    "a call that nobody answers": [ASK, CALLING, NEXT],
    "an answer behind a result": [SYS, ASK, CALLING, RESULT, ANSWER, NEXT],
    "several rounds": [ASK, CALLING, RESULT, CALLING, RESULT, ANSWER, NEXT, CALLING, RESULT],
    "two calls": [ASK, BOTH, RESULT, SECOND],
    "two calls, answers swapped": [ASK, BOTH, SECOND, RESULT, ANSWER, NEXT],
    "two calls, one answer": [ASK, BOTH, SECOND, NEXT],
    "a text and a call": [ASK, TALKING, RESULT],
    "a stray result": [ASK, RESULT, NEXT],
    "a stray result behind an answer": [ASK, CALLING, RESULT, ANSWER, SECOND, NEXT],
    "a result first": [RESULT, NEXT],
    "many turns": [SYS, *[ASK, ANSWER] * 30, *[ASK, CALLING, RESULT, ANSWER] * 30, LATE, NEXT],
}
NOTHING = {"null": None, "[]": [], "": "", "[text]": [{"type": "text", "text": ""}]}
AROUND: dict[str, tuple[list[Json], list[Json]]] = {
    "system": ([], [ASK]),
    "developer": ([], [ASK]),
    "user": ([], []),
    "assistant": ([ASK], [NEXT]),
    "tool": ([ASK, CALLING], [ANSWER, NEXT]),
}
REFUSAL = [{"type": "refusal", "refusal": "Refused1."}]
TEXTS = [{"type": "text", "text": "Text1."}, {"type": "text", "text": "Text2."}]
ARGUMENTS = (None, "", "null", "absent", {}, "{}", "[\"Oslo1\"]", '"{\\"a\\": \\"Oslo1\\"}"', '"Oslo1"', '{"a": "Oslo1',
             "Oslo1", ["Oslo1"], {"a": "Oslo1"}, '{"a": {"b": ["Oslo1"]}}')  # fmt: skip
IDS = ("c", "toolu_01A09q90qw90lq917835lq9", "functions.lookup:0", "abc123XYZ", "a-c-e-g-i", "x" * 300, 7, None)
TEXT = {"type": "string"}


def having(**properties: Any) -> Json:
    """Returns the schema of an object with these properties."""
    return {"type": "object", "properties": properties}


FUNCTIONS = {
    "nothing": {},
    "no description": {"parameters": {"type": "object", "properties": {}}},
    "null description": {"description": None, "parameters": having(a=TEXT)},
    "no parameters": {"description": "Does1"},
    "null parameters": {"description": "Does1", "parameters": None},
    "empty parameters": {"description": "Does1", "parameters": {}},
    "parameters without properties": {"description": "Does1", "parameters": {"type": "object"}},
    "nulls within": {"description": "Does1", "parameters": having(a={**TEXT, "description": None, "enum": None})},
    "a null of required names": {"description": "Does1", "parameters": {**having(a=TEXT), "required": None}},
    "parameters without a type or description": {"parameters": having(a=TEXT, b={"description": "x"}, c={})},
    "a default beside values": {"parameters": having(a={"type": "integer", "enum": [1], "default": 1})},
}


def words_of(messages: list[Json]) -> tuple[str, ...]:
    """Returns the texts of a conversation, which all end in a number."""
    return tuple(dict.fromkeys(re.findall(r"\b[A-Za-z]+[0-9]\b", json.dumps(messages))))


def shapes() -> dict[str, Shape]:
    found = {name: Shape(messages, words_of(messages)) for name, messages in ORDERS.items()}
    for (role, (before, after)), (form, nothing) in itertools.product(AROUND.items(), NOTHING.items()):
        more = {"tool_call_id": CALLING["tool_calls"][0]["id"]} if role == "tool" else {}
        rest = words_of([*before, *after])
        found[f"{role} says {form}"] = Shape([*before, {**said(role, nothing), **more}, *after], rest)
        for form, content in (("refusal", REFUSAL), ("texts", TEXTS)):
            messages = [*before, {**said(role, content), **more}, *after]
            found[f"{role} says {form}"] = Shape(messages, words_of(messages))
    for form, nothing in NOTHING.items():
        silent = {**CALLING, "content": nothing}
        found[f"a call beside {form}"] = Shape([ASK, silent, RESULT, ANSWER, NEXT], words_of([ASK, CALLING, RESULT]))
    found["a refusal in its field"] = Shape([ASK, {**said("assistant", None), "refusal": "No1."}, NEXT], ("No1.",))
    for arguments in ARGUMENTS:
        messages = [ASK, assistant("", tool_calls=calls(("lookup", arguments))), RESULT]
        found[f"arguments {arguments!r}"] = Shape(messages, words_of(messages))
    for one in IDS:
        call = assistant("", tool_calls=calls(("lookup", '{"city": "Oslo1"}'), ids=(one,)))
        found[f"id {str(one)[:40]!r}"] = Shape([ASK, call, result("Result1.", one), ANSWER, NEXT], CALLED)
    without_ids = [ASK, assistant("", tool_calls=[{"function": c["function"]} for c in BOTH["tool_calls"]])]
    found["no ids"] = Shape([*without_ids, said("tool", "Result1."), said("tool", "Result2.")], CALLED)
    for name, members in FUNCTIONS.items():
        function = {"name": "lookup1", **members}
        found[f"tool with {name}"] = Shape([ASK], ("Ask1",), ({"type": "function", "function": function},))
    thought = {"reasoning_content": "Because1."}
    found["reasoning, a text and a call"] = Shape(
        [ASK, {**TALKING, **thought}, RESULT], words_of([ASK, TALKING, RESULT])
    )
    return found


SHAPES = shapes()


@cache
def template(name: str) -> ChatTemplate:
    return compiled(name) if name in TEMPLATES else ChatTemplate(SOURCES[name], special_tokens=TOKENS)


@cache
def plain(name: str, tools: bool) -> str:
    tool = {"type": "function", "function": {"name": "f", "description": "", "parameters": {"type": "object"}}}
    return rendered(name, Shape([ASK, CALLING, RESULT], (), (tool,) if tools else ()))


def rendered(name: str, shape: Shape, **more: Any) -> str:
    return template(name).render(ChatPrompt(messages=shape.messages, tools=list(shape.tools), **more))


GROUPS = 6
"""The number of parts into which the shapes are divided, each a test."""


@pytest.mark.parametrize("group", few_fast(range(GROUPS), 1))
@pytest.mark.parametrize("name", list(SOURCES))
def test_every_conversation_goes_on_and_is_shown_whole(name: str, group: int) -> None:
    for case, shape in list(SHAPES.items())[group::GROUPS]:
        for add in (True, False) if case in ORDERS else (True,):
            text = rendered(name, shape, add_generation_prompt=add)
            assert [word for word in shape.words if word.rstrip(".?") not in text] == [], (case, text)
            base = plain(name, bool(shape.tools))
            for nothing in ("None", "null", "Undefined"):
                assert text.count(nothing) <= base.count(nothing), (case, text)


@settings(max_examples=25, deadline=None)
@given(st.sampled_from(sorted(SOURCES)), st.lists(st.integers(0, 6), min_size=1, max_size=90))
@pytest.mark.slow
def test_any_order_of_roles_goes_on_and_is_shown_whole(name: str, order: list[int]) -> None:
    kinds = ("system", "developer", "user", "assistant", "calls", "tool", "user")
    messages: list[Json] = []
    for place, kind in enumerate(kinds[number] for number in order):
        message = said(kind, f"Said{place}x")
        if kind == "calls":
            message = assistant("", tool_calls=calls((f"Said{place}x", "{}"), ids=(f"id{place}",)))
        elif kind == "tool":
            message["tool_call_id"] = f"id{place - 1}"
        messages.append(message)
    text = rendered(name, Shape(messages, ()))
    assert [place for place in range(len(order)) if f"Said{place}x" not in text] == []


@pytest.mark.parametrize("name", list(SOURCES))
def test_texts_stay_in_their_order(name: str) -> None:
    for case in ("two systems", "instructions and a developer", "two users later", "a call", "several rounds"):
        shape = SHAPES[case]
        text = rendered(name, shape)
        users = [word for word in shape.words if word[:-1] in ("Ask", "Next", "Again", "Env")]
        assert sorted(users, key=text.index) == users, case


def test_the_first_texts_are_joined_to_one_where_the_template_shows_one() -> None:
    shape = SHAPES["instructions and a developer"]
    assert "<|im_start|>system\nSys1.\n\nDev1.<|im_end|>\n<|im_start|>user\nAsk1?" in rendered("qwen36", shape)
    assert "# Instructions\n\nSys1.\n\nDev1.\n\n<|end|>" in rendered("gpt_oss", shape)
    assert rendered("mistral7b_v03", shape) == "<s>[INST] Sys1.\n\nDev1.\n\nAsk1?[/INST]"
    assert "<|im_start|>system\nSys1.<|im_end|>\n<|im_start|>system\nDev1." in rendered("qwen3", shape)


def test_a_late_text_is_a_system_message_where_the_template_shows_it_and_else_a_users() -> None:
    shape = SHAPES["a late developer"]
    assert "<|im_start|>system\nLateDev1.<|im_end|>" in rendered("qwen3", shape)
    assert "<|im_start|>user\nLateDev1.<|im_end|>" in rendered("qwen36", shape)
    assert "<|start|>user<|message|>LateDev1.<|end|>" in rendered("gpt_oss", shape)
    assert rendered("mistral7b_v03", shape).endswith("[INST] Dev1.\n\nLateDev1.\n\nNext1?[/INST]")


# --- ids -----------------------------------------------------------------------------------------------------------

FITS = re.compile(r"[0-9A-Za-z]{9}")


def short_ids_of(messages: list[Json]) -> tuple[list[str], list[str]]:
    messages = with_short_ids(with_ids(messages))
    called = [call["id"] for message in messages for call in message.get("tool_calls", ())]
    return called, [message["tool_call_id"] for message in messages if message["role"] == "tool"]


@settings(max_examples=40)
@given(
    st.lists(st.one_of(st.text(), st.from_regex(FITS, fullmatch=True), st.integers(0, 9)), unique_by=str, max_size=8)
)
@pytest.mark.slow
def test_short_ids_are_as_different_as_the_clients(given: list[Any]) -> None:
    given = [one for one in given if one != ""]
    messages = [
        message
        for one in given
        for message in (assistant("", tool_calls=calls(("f", "{}"), ids=(one,))), result("x", one))
    ]
    called, answered = short_ids_of(messages)
    assert called == answered
    assert all(FITS.fullmatch(one) for one in called)
    assert len(set(called)) == len(given)
    assert all(
        new == old for new, old in zip(called, given, strict=True) if isinstance(old, str) and FITS.fullmatch(old)
    )
    again, _ = short_ids_of([*messages, ASK])
    assert again == called


def test_a_derived_id_gives_way_to_a_clients() -> None:
    [derived], _ = short_ids_of([assistant("", tool_calls=calls(("f", "{}"), ids=("call_1",)))])
    taken = calls(("f", "{}"), ("g", "{}"), ids=("call_1", derived))
    [other, kept], _ = short_ids_of([assistant("", tool_calls=taken)])
    assert kept == derived
    assert other != derived
    assert FITS.fullmatch(other)


def test_results_without_ids_answer_the_calls_in_turn() -> None:
    functions = [{"function": {"name": name}} for name in ("f", "g", "f")]
    results = [
        {"role": "tool", "content": "x", "name": "g"},
        said("tool", "y"),
        said("tool", "z"),
        said("tool", "more"),
    ]
    [first, second, third], answers = short_ids_of([assistant("", tool_calls=functions), *results])
    assert answers[:3] == [second, first, third]
    assert answers[3] == third  # no call is left, and the result does not name one
    source = "{% for m in messages %}{{ m.tool_calls | default([]) }}{{ m.tool_call_id }}{{ m.content }}{% endfor %}"
    text = ChatTemplate(source).render(ChatPrompt(messages=[ASK, CALLING, RESULT]))
    assert text.count(CALLING["tool_calls"][0]["id"]) == 2, "ids stay where the template does not ask"


# --- marks of reasoning --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "content", "shown"),
    [
        ("gpt_oss", "<|channel|>analysis<|message|>Why1.<|end|><|start|>assistant<|channel|>final<|message|>So1.",
         "So1."),
        ("gpt_oss", "<|channel|>final<|message|>So1.<|return|>", "So1."),
        ("gpt_oss", "Said1. <|start|>assistant<|channel|>final<|message|>So1.", "Said1.\n\nSo1."),
        ("gpt_oss", "<|channel|>analysis<|message|>Why1.<|end|><|start|>assistant<|channel|>commentary to=functions.f "
         "<|constrain|>json<|message|>{}<|call|>", "to=functions.f {}"),
        ("strict", "<think>\nWhy1.\n</think>\n\nSo1.", "So1."),
        ("strict", "Why1.</think>So1.", "So1."),
        ("strict", "Said1.<think>Why1.</think>So1.<think>Why2.</think>Then1.", "Said1.So1.Then1."),
        ("strict", "Why1.</think>So1.<think>Why2.</think>Then1.</think>", "So1.Then1."),
        ("strict", "<think>Why1.</think>So1." * 2000, "So1.So1."),
    ],
)  # fmt: skip
def test_marks_that_the_template_refuses_are_taken_apart(name: str, content: str, shown: str) -> None:
    for said_so in (content, [{"type": "text", "text": content}]):
        text = rendered(name, Shape([ASK, assistant(said_so), NEXT], ()))
        assert shown in text
        assert "Why1" not in text  # a template drops the reasoning of earlier turns
    call = assistant(content, tool_calls=CALLING["tool_calls"])
    assert all(word in rendered(name, Shape([ASK, call, RESULT], ())) for word in CALLED)


def test_marks_in_the_reasoning_are_taken_out_and_those_that_the_template_reads_stay() -> None:
    thought = {**CALLING, "reasoning_content": "<|channel|>analysis<|message|>Why1."}
    assert "<|channel|>analysis<|message|>Why1.<|end|>" in rendered("gpt_oss", Shape([ASK, thought, RESULT], ()))
    text = rendered("lfm2", Shape([ASK, assistant("<think>Why1.</think>So1.")], ()), add_generation_prompt=False)
    assert "<think>Why1.</think>So1." in text


# --- roles ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", list(SOURCES))
def test_an_unknown_role_is_refused_with_those_that_are_known(name: str) -> None:
    for role in ("robot", "usr", "System", "", None, 5, "user\n"):
        with pytest.raises(BadRequest, match="must be one of: system, developer, user, assistant, tool") as error:
            rendered(name, Shape([ASK, {"role": role, "content": "x"}], ()))
        assert error.value.param == "messages[1].role"


def test_a_role_that_the_template_names_and_shows_is_known() -> None:
    source = "{% for m in messages %}{% if m.role == 'document' %}DOC {% endif %}{{ m.content }};{% endfor %}"
    messages = [said("document", "Facts1."), ASK]
    assert ChatTemplate(source).render(ChatPrompt(messages=messages)) == "DOC Facts1.;Ask1?;"
    drops = "{% for m in messages if m.role != 'document' %}{{ m.content }};{% endfor %}"
    with pytest.raises(BadRequest, match="must be one of"):
        ChatTemplate(drops).render(ChatPrompt(messages=messages))


def test_a_plain_conversation_is_given_as_it_is() -> None:
    messages = [SYS, ASK, ANSWER, NEXT, CALLING, RESULT, ANSWER, NEXT]
    for name in ("qwen3", "mistral7b_v03", "gpt_oss"):
        found, _ = template(name)._main.reader.arrange(messages, [], add=True, write_calls=plain_calls)
        assert found is messages
