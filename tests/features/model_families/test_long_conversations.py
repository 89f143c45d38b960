"""Arranging a conversation of thousands of messages takes linear, not quadratic, time."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lean_ovms.features.model_families.arrange import (
    CHANGES,
    _kind,
    _texts_behind_calls,
    _turns_joined,
    with_tool_texts,
)
from lean_ovms.text.template.chat_template import plain_calls
from lean_ovms.text.template.messages import Capabilities, prepare, with_ids
from lean_ovms.types import Json
from tests.cases import few_fast

MANY, TEXT = 8_000, "x" * 1000
SECONDS = 0.8
"""CPU time for MANY messages, ten times of what is needed. Copying all texts for each message would take ten times
this limit."""
NO_CALLS = Capabilities(calls=False, calls_with_tools=False)


def call(name: str) -> Json:
    return {"id": name, "type": "function", "function": {"name": "f", "arguments": "{}"}}


def as_text(messages: list[Json]) -> list[Json]:
    return with_tool_texts(messages, [], NO_CALLS, plain_calls)[0]


def one_call_each(messages: list[Json]) -> list[Json]:
    return prepare(messages, Capabilities(several_calls=False))


def said(role: str, content: Any = TEXT, **more: Any) -> Json:
    return {"role": role, "content": content, **more}


CALLING: Json = said("assistant", tool_calls=[call("c")])
CONVERSATIONS: dict[str, list[Json]] = {
    "users": [said("user")] * MANY,
    "users with parts": [said("user", [{"type": "text", "text": TEXT}])] * MANY,
    "answers": [said("assistant", reasoning_content=TEXT)] * MANY,
    "texts before calls": [said("assistant"), CALLING] * (MANY // 2) + [said("assistant")],
    "texts and results": [said("assistant"), CALLING, said("tool", tool_call_id="c")] * (MANY // 3),
    "results": [said("assistant", tool_calls=[call("c")]), *[said("tool", tool_call_id="c")] * MANY],
    "systems": [said("system")] * MANY,
    "many calls": [
        said("assistant", tool_calls=[call(f"c{place}") for place in range(MANY)]),
        *[said("tool", tool_call_id=f"c{place}") for place in range(MANY)],
    ],
    "many calls with results of other ids": [
        said("assistant", tool_calls=[call(f"c{place}") for place in range(MANY)]),
        *[said("tool", tool_call_id=f"d{place}", name="f") for place in range(MANY)],
    ],
}


@pytest.mark.parametrize("change", [*CHANGES, as_text, one_call_each, with_ids], ids=lambda change: change.__name__)
@pytest.mark.parametrize("name", few_fast(CONVERSATIONS, 3))
def test_many_messages_take_little_time(name: str, change: Callable[[list[Json]], list[Json]]) -> None:
    messages = CONVERSATIONS[name]
    start = time.process_time()
    change(messages)
    assert time.process_time() - start < SECONDS


# --- the same as message by message --------------------------------------------------------------------------------

TEXTS = st.sampled_from([None, "", "a", "b"])
PARTS = st.lists(st.sampled_from([{"type": "text", "text": "a"}, {"type": "image"}]), min_size=1, max_size=2)
ROLES = st.sampled_from(["user", "assistant", "assistant", "tool", "system"])


@st.composite
def conversations(draw: st.DrawFn, contents: st.SearchStrategy[Any]) -> list[Json]:
    found = []
    for place, role in enumerate(draw(st.lists(ROLES, max_size=12))):
        message = said(role, draw(contents))
        if role == "assistant":
            message |= draw(
                st.sampled_from([{}, {"tool_calls": [call(f"c{place}")]}, {"reasoning_content": f"r{place}"}])
            )
        elif role == "tool":
            message["tool_call_id"] = f"c{place - 1}"
        found.append(message)
    return found


def pair(first: Json, second: Json, between: str = "\n\n") -> Json:
    """Joins two messages whose contents are both texts, or both parts."""
    whole = {**first, **second}
    one, other = first.get("content"), second.get("content")
    texts = isinstance(one, str | None) and isinstance(other, str | None)
    whole["content"] = between.join(filter(None, (one, other))) if texts else (one or []) + (other or [])
    if thoughts := [m["reasoning_content"] for m in (first, second) if m.get("reasoning_content")]:
        whole["reasoning_content"] = "\n\n".join(thoughts)
    if calls := first.get("tool_calls", []) + second.get("tool_calls", []):
        whole["tool_calls"] = calls
    return whole


def turns_joined_slowly(messages: list[Json]) -> list[Json]:
    found: list[Json] = []
    for message in messages:
        if found and message["role"] in ("user", "assistant") and found[-1]["role"] == message["role"]:
            found[-1] = pair(found[-1], message)
        else:
            found.append(message)
    return found


def texts_behind_calls_slowly(messages: list[Json]) -> list[Json]:
    found: list[Json] = []
    held: Json = {}
    for place, message in enumerate(messages):
        rest = messages[place + 1 :]
        users = [at for at, one in enumerate(rest) if one["role"] == "user"]
        later = any(_kind(one) == "assistant" for one in rest[: users[0] if users else None])
        if _kind(message) != "assistant":
            found.append(message)
        elif later and rest[0].get("tool_calls"):
            held = pair(held, message) if held else message
        else:
            message = {**message, "content": message["content"] or ""}
            found.append(pair(held, message) if held else message)
            held = {}
    return found


@settings(max_examples=100, deadline=None)
@given(conversations(TEXTS) | conversations(PARTS))
@pytest.mark.slow
def test_joined_turns_are_those_that_are_joined_two_by_two(messages: list[Json]) -> None:
    assert _turns_joined(messages) == turns_joined_slowly(messages)
    assert _texts_behind_calls(messages) == texts_behind_calls_slowly(messages)


@settings(max_examples=60, deadline=None)
@given(conversations(TEXTS))
def test_results_in_a_row_are_those_that_are_joined_two_by_two(messages: list[Json]) -> None:
    alone: list[Json] = []
    for message in messages:  # an empty message between two results keeps them apart
        alone += [message, said("system", "between")]
    found: list[Json] = []
    for written, message in zip(as_text(alone)[::2], messages, strict=True):
        if message["role"] == "tool" and found and found[-1][0]["role"] == "tool":
            found[-1] = message, pair(found[-1][1], written, "\n")
        else:
            found.append((message, written))
    assert as_text(messages) == [written for _, written in found]


def test_texts_in_a_row_are_one_part_beside_others() -> None:
    image = {"type": "image"}
    messages = [said("user", content) for content in ("a", "b", [image], "c", "", "d", [image])]
    [joined] = _turns_joined(messages)
    assert joined["content"] == [
        {"type": "text", "text": "a\n\nb"}, image, {"type": "text", "text": "c\n\nd"}, image,
    ]  # fmt: skip
