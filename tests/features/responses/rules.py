"""The rules for every stream of response events: OpenAI's schema, by the types of its client, and the life cycle."""

from __future__ import annotations

import typing
from collections.abc import Sequence
from functools import cache
from typing import Any

import orjson
import pydantic
from openai.types.responses import Response, ResponseStreamEvent

from lean_ovms import types
from lean_ovms.api.app import App
from tests.api.conftest import parts, post, whole

Json = dict[str, Any]
PATH = "/v1/responses"

TERMINAL = ("response.completed", "response.incomplete", "response.failed")

OPENS_PART = {"response.content_part.added": "content", "response.reasoning_summary_part.added": "summary"}
CLOSES_PART = {"response.content_part.done": "content", "response.reasoning_summary_part.done": "summary"}
TEXTS = {
    "response.output_text": "text",
    "response.reasoning_summary_text": "text",
    "response.function_call_arguments": "arguments",
    "response.custom_tool_call_input": "input",
}
CALLS = {"function_call": "arguments", "custom_tool_call": "input"}


def ask(given: Any = "hi", **fields: Any) -> Json:
    """Returns a body with this input."""
    return {"model": "m", "input": given, **fields}


async def respond(app: App, given: Any = "hi", **fields: Any) -> Json:
    """Returns the finished response to an input."""
    response = await post(app, PATH, ask(given, **fields))
    assert response.status == 200, response.body
    found: Json = await whole(response)
    check_response(found)
    return found


async def refused(app: App, given: Any = "hi", status: int = 400, **fields: Any) -> Json:
    """Returns the error object for an input."""
    response = await post(app, PATH, ask(given, **fields))
    assert response.status == status, response.body
    error: Json = (await whole(response))["error"]
    return error


async def streamed(response: types.Response) -> list[Json]:
    """Returns the events of a stream, and checks them."""
    assert response.status == 200, response.body
    events = parse_sse(b"".join([part async for part in parts(response)]))
    check(events)
    return events


def parse_sse(data: bytes) -> list[Json]:
    """Returns the events of a complete stream, and checks its framing and the final [DONE]."""
    assert data.endswith(b"data: [DONE]\n\n")
    return parse_frames(data.removesuffix(b"data: [DONE]\n\n"))


def parse_frames(data: bytes) -> list[Json]:
    """Returns the events of a part of a stream, and checks that both lines of each event name the same type."""
    found = []
    for block in data.split(b"\n\n"):
        if not block or block.startswith(b":"):
            continue
        first, second = block.split(b"\n")
        event = orjson.loads(second.removeprefix(b"data: "))
        assert second.startswith(b"data: ")
        assert first == b"event: " + event["type"].encode()
        assert list(event)[:2] == ["type", "sequence_number"]
        found.append(event)
    return found


@cache
def _models() -> dict[str, type[pydantic.BaseModel]]:
    union = typing.get_args(ResponseStreamEvent)[0]
    return {typing.get_args(m.model_fields["type"].annotation)[0]: m for m in typing.get_args(union)}


def check_schema(event: Json) -> None:
    """Checks that OpenAI's types accept the event, and that no required field is missing or has another type."""
    _models()[event["type"]].model_validate(event, strict=True)


def check_response(response: Json) -> None:
    """Checks that OpenAI's type accepts the response object, and that the object is consistent."""
    Response.model_validate(response, strict=True)
    assert (response["status"] == "incomplete") == bool(response["incomplete_details"])
    assert (response["status"] == "failed") == bool(response["error"])
    assert (response["status"] == "completed") == ("completed_at" in response)
    assert (response["usage"] is not None) == (response["status"] in ("completed", "incomplete", "cancelled"))
    ids = [item["id"] for item in response["output"]]
    assert len(set(ids)) == len(ids)
    if response["status"] == "completed":
        assert {item["status"] for item in response["output"]} <= {"completed"}


def check(events: Sequence[Json]) -> Json:
    """Checks all rules for a complete stream, and returns the final response object."""
    assert [e["sequence_number"] for e in events] == list(range(len(events)))
    for event in events:
        check_schema(event)
    kinds = [e["type"] for e in events]
    assert kinds[0] == "response.created"
    head = ["response.created", "response.in_progress"]
    if events[0]["response"]["status"] == "queued":
        head.insert(1, "response.queued")
    assert kinds[: len(head)] == head
    assert [k for k in kinds if k in TERMINAL] == [kinds[-1]]
    items = _Items()
    for event in events[len(head) : -1]:
        items.take(event)
    final: Json = events[-1]["response"]
    check_response(final)
    assert items.open == {}
    assert final["output"] == [items.done[i] for i in range(len(items.done))], (
        "output is what the events said, in order"
    )
    same = ("id", "created_at", "model", "metadata", "tools", "object")
    for event in events[: len(head)]:
        assert event["response"]["output"] == []
        assert {k: event["response"][k] for k in same} == {k: final[k] for k in same}
    return final


class _Items:
    """The items of a stream: which are open, their content so far, and which are done."""

    def __init__(self) -> None:
        self.open: dict[int, Json] = {}
        self.done: dict[int, Json] = {}
        self.parts: dict[int, Json] = {}

    def take(self, event: Json) -> None:
        kind, index = event["type"], event["output_index"]
        if kind == "response.output_item.added":
            assert index == len(self.open) + len(self.done), "output_index counts items in the order they begin"
            assert event["item"]["status"] == "in_progress"
            self.open[index] = {**event["item"], "said": ""}
            return
        item = self.open[index]
        if kind == "response.output_item.done":
            assert index not in self.parts, "its part is still open"
            if item["type"] == "tool_search_call":  # it has no events of its content
                assert "whole" not in item
            else:
                assert item["whole"] == _text_of(event["item"])
            unchanged = ("id", "type", "role", "call_id", "name")
            assert {k: event["item"].get(k) for k in unchanged} == {k: item.get(k) for k in unchanged}
            assert event["item"]["status"] in ("completed", "incomplete")
            self.done[index] = event["item"]
            del self.open[index]
            return
        assert event["item_id"] == item["id"]
        if kind in OPENS_PART or kind in CLOSES_PART:
            self._part(event, index)
        else:
            self._text(event, index, item)

    def _part(self, event: Json, index: int) -> None:
        which = OPENS_PART.get(event["type"]) or CLOSES_PART[event["type"]]
        assert event[f"{which}_index"] == 0
        if event["type"] in OPENS_PART:
            assert index not in self.parts
            assert event["part"]["text"] == ""
            self.parts[index] = event["part"]
        else:
            assert event["part"]["text"] == self.open[index]["whole"]
            assert event["part"]["type"] == self.parts.pop(index)["type"]

    def _text(self, event: Json, index: int, item: Json) -> None:
        stem, _, phase = event["type"].rpartition(".")
        assert stem in TEXTS, event["type"]
        assert "whole" not in item, "nothing comes after the end of a text"
        assert (index in self.parts) == (item["type"] not in CALLS)
        if phase == "delta":
            assert event["delta"], "an empty delta says nothing"
            item["said"] += event["delta"]
        else:
            assert event[TEXTS[stem]] == item["said"]
            item["whole"] = item["said"]


def _text_of(item: Json) -> str:
    if item["type"] in CALLS:
        return str(item[CALLS[item["type"]]])
    return "".join(part["text"] for part in item["content" if item["type"] == "message" else "summary"])
