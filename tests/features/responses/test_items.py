"""Input items: the messages that they become, how they are stored, and what is rejected."""

from __future__ import annotations

import time
from typing import Any

import openai.types.responses as types
import pydantic
import pytest

from lean_ovms.errors import BadRequest
from lean_ovms.features.responses.items import MAX_ITEMS, read_input, to_messages
from lean_ovms.types import Json

CALL = {"type": "function_call", "call_id": "c1", "name": "f", "arguments": '{"x":1}'}
CALLED = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"x":1}'}}
OUT = {"type": "function_call_output", "call_id": "c1", "output": "42"}
RESULT = {"role": "tool", "tool_call_id": "c1", "content": "42"}
THOUGHT = {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "hm"}]}
USER = {"role": "user", "content": "hi"}


def says(role: str, *texts: str) -> Json:
    kind = "output_text" if role == "assistant" else "input_text"
    return {"type": "message", "role": role, "content": [{"type": kind, "text": text} for text in texts]}


@pytest.mark.parametrize(
    ("given", "messages"),
    [
        ("hi", [USER]),
        ([USER], [USER]),
        ([{"type": "message", **USER}], [USER]),
        ([says("user", "hi")], [USER]),
        (
            [says("user", "a", "b")],
            [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}],
        ),
        ([{"role": "developer", "content": "x"}, USER], [{"role": "developer", "content": "x"}, USER]),
        ([USER, CALL, OUT], [USER, {"role": "assistant", "content": "", "tool_calls": [CALLED]}, RESULT]),
        (
            [says("assistant", "I look."), CALL, OUT],
            [{"role": "assistant", "content": "I look.", "tool_calls": [CALLED]}, RESULT],
        ),
        (
            [THOUGHT, CALL, OUT, THOUGHT, says("assistant", "It is 42.")],
            [
                {"role": "assistant", "content": "", "reasoning_content": "hm", "tool_calls": [CALLED]},
                RESULT,
                {"role": "assistant", "content": "It is 42.", "reasoning_content": "hm"},
            ],
        ),
        ([CALL, says("assistant", "So.")], [{"role": "assistant", "content": "So.", "tool_calls": [CALLED]}]),
        ([CALL, CALL, OUT], [{"role": "assistant", "content": "", "tool_calls": [CALLED, CALLED]}, RESULT]),
        (
            [says("assistant", "a"), says("assistant", "b")],
            [{"role": "assistant", "content": "a"}, {"role": "assistant", "content": "b"}],
        ),
        ([THOUGHT, THOUGHT], [{"role": "assistant", "content": "", "reasoning_content": "hm\nhm"}]),
        ([says("assistant", "a"), THOUGHT, CALL], [
            {"role": "assistant", "content": "a"},
            {"role": "assistant", "content": "", "reasoning_content": "hm", "tool_calls": [CALLED]},
        ]),
        ([{**THOUGHT, "summary": []}, USER], [USER]),
        (
            [{**THOUGHT, "content": [{"type": "reasoning_text", "text": "all of it"}]}, USER],
            [{"role": "assistant", "content": "", "reasoning_content": "all of it"}, USER],
        ),
        ([{**OUT, "output": [{"type": "input_text", "text": "42"}]}], [RESULT]),
        ([{"type": "function_call", "id": "c1", "name": "f", "arguments": '{"x":1}'}, OUT],
         [{"role": "assistant", "content": "", "tool_calls": [CALLED]}, RESULT]),
        (
            [{"role": "user", "content": [{"type": "input_image", "image_url": "data:x"}]}],
            [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:x", "detail": "auto"}}]}],
        ),
        (
            [{"role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]}],
            [{"role": "assistant", "content": "No."}],
        ),
    ],
)  # fmt: skip
def test_items_become_messages(given: Any, messages: list[Json]) -> None:
    assert to_messages(read_input(given)) == messages


def test_items_are_kept_as_openai_lists_them() -> None:
    adapter: pydantic.TypeAdapter[Any] = pydantic.TypeAdapter(types.ResponseItem)
    kept = read_input([USER, says("assistant", "x"), THOUGHT, CALL, OUT, {"id": "msg_1", **says("user", "y")}])
    for item in kept:
        adapter.validate_python(item)
    assert [item["id"].partition("_")[0] for item in kept] == ["msg", "msg", "rs", "fc", "fco", "msg"]
    assert kept[2]["id"] == "rs_1"
    assert kept[5]["id"] == "msg_1"


def test_reading_what_was_kept_changes_nothing() -> None:
    kept = read_input([USER, says("assistant", "x"), THOUGHT, CALL, OUT])
    assert read_input(kept) == kept


def test_a_reference_is_one_with_or_without_its_type() -> None:
    reference = {"type": "item_reference", "id": "msg_1"}
    assert read_input([{"id": "msg_1"}, reference]) == [reference, reference]


def test_no_content_and_no_arguments_come_back_from_clients() -> None:
    for role in ("user", "assistant", "system", "developer"):
        for content in (None, []):
            [item] = read_input([{"type": "message", "role": role, "content": content}])
            assert to_messages([item]) == [{"role": role, "content": []}]
    for call in ({**CALL, "arguments": None}, {name: value for name, value in CALL.items() if name != "arguments"}):
        [message] = to_messages(read_input([call]))
        assert message["tool_calls"][0]["function"]["arguments"] == ""
    for given in ({"input": None}, {}):
        [item] = read_input([{"type": "custom_tool_call", "call_id": "c1", "name": "f", **given}])
        assert item["input"] == ""


@pytest.mark.parametrize(
    ("item", "words"),
    [
        ("x", "input array items must be objects"),
        ({}, "input item role is missing or invalid"),
        ({"content": "x"}, "input item role is missing or invalid"),
        ({"role": 1, "content": "x"}, "input item role is missing or invalid"),
        ({"role": "user"}, "input item is missing required content field"),
        ({"role": "user", "content": 1}, "input item content must be a string or array"),
        ({"role": "user", "content": ["x"]}, "input content items must be objects"),
        ({"role": "user", "content": [{}]}, "input content item type is missing or invalid"),
        ({"role": "user", "content": [{"type": "input_text"}]}, "input_text requires a valid text field"),
        ({"role": "assistant", "content": [{"type": "output_text", "text": 1}]}, "output_text requires a valid text"),
        ({"role": "user", "content": [{"type": "video"}]}, "unsupported input content item type: video"),
        ({"role": "user", "content": [{"type": "input_file", "file_id": "f"}]}, "input_file does not support"),
        ({"role": "user", "content": [{"type": "input_audio"}]}, "input_audio does not have data field"),
        ({"role": "user", "content": [{"type": "input_image"}]}, "input_image requires image_url field"),
        ({"role": "user", "content": [{"type": "input_image", "file_id": "f"}]}, "file_id is not supported"),
        (
            {"role": "user", "content": [{"type": "input_image", "image_url": {}}]},
            "image_url.url is missing or invalid",
        ),
        ({"role": "user", "content": [{"type": "input_image", "image_url": 1}]}, "must be a string or object"),
        ({**CALL, "call_id": None}, "missing required call_id (or id) field"),
        ({**CALL, "name": None}, "missing required name field"),
        ({**CALL, "arguments": {}}, "missing required arguments field"),
        ({**OUT, "output": None}, "output must be a string or an array"),
        ({**OUT, "output": {"a": 1}}, "output must be a string or an array"),
        ({**THOUGHT, "summary": "hm"}, "reasoning.summary must be an array"),
        ({"type": "compaction", "encrypted_content": None}, "encrypted_content"),
        ({"type": "compaction_trigger"}, "input item type 'compaction_trigger' is not supported"),
        ({"type": "web_search_call", "id": 1}, "web_search_call.id is not a string"),
        ({"type": 7}, "input item type '7' is not supported"),
        ({"type": "item_reference"}, "item_reference requires a valid id field"),
    ],
)
def test_what_cannot_be_read_is_refused_with_its_place(item: Any, words: str) -> None:
    with pytest.raises(BadRequest) as caught:
        read_input([USER, item])
    assert words in caught.value.message
    assert caught.value.param is not None
    assert caught.value.param.startswith("input[1]")


# --- many items


TEXT = "x" * 1000
SECONDS = 1.0
"""CPU time for all items, ten times of what is needed. Copying all texts for each item would take 18 s."""


def reasoning(text: str) -> Json:
    return {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": text}]}


@pytest.mark.parametrize("role", ["reasoning", "user", "assistant"])
def test_many_items_take_little_time(role: str) -> None:
    part = {"type": "output_text" if role == "assistant" else "input_text", "text": TEXT}
    said = {"type": "message", "id": "msg_1", "role": role, "content": [part]}
    items = [reasoning(TEXT) if role == "reasoning" else said] * (MAX_ITEMS - 1)
    items.append({"type": "compaction", "id": "cmp_1", "encrypted_content": "lean_ovms-summary-1:All."})
    start = time.process_time()
    to_messages(items[::-1] if role != "user" else items)
    assert time.process_time() - start < SECONDS


def test_reasoning_of_several_items_is_one_text() -> None:
    assert to_messages([reasoning(text) for text in "abc"])[0]["reasoning_content"] == "a\nb\nc"
