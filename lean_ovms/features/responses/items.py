"""Input items: their validation, their stored form, and their conversion to chat messages.

Items of other providers' tools are in foreign_items.py. References to stored items are resolved before the conversion.
"""

from __future__ import annotations

from collections.abc import Callable, Set
from typing import Any

from ...api.stored_objects import item_id
from ...errors import BadRequest
from ...types import Json
from ..chat.content import check_member, left_out
from ..chat.foreign import NO_RESULT, arguments
from . import compaction, foreign_items
from .tool_forms import (
    APPROVAL_REQUEST,
    APPROVAL_RESPONSE,
    CALL,
    LISTING,
    MAX_LISTED,
    SEARCH_CALL,
    error_text,
    function_name,
)

MAX_ITEMS = 10_000

REFERENCE = "item_reference"


def read_input(value: Any) -> list[Json]:
    """Returns the items of the field `input`, each with type, id and content as a list. Raises BadRequest."""
    if isinstance(value, str):
        if not value:
            raise BadRequest("input cannot be empty", param="input")
        return [_message({"role": "user", "content": value}, "input")]
    if not isinstance(value, list):
        raise BadRequest("input is not a string or array", param="input")
    if not value:
        raise BadRequest("input array must not be empty", param="input")
    return read_items(value, "input")


def read_items(values: list[Any], param: str) -> list[Json]:
    """Reads an array of items. Returns them, each with a type, an id and its content as a list. Raises BadRequest."""
    if len(values) > MAX_ITEMS:
        raise BadRequest(f"{param} must have no more than {MAX_ITEMS} items", param=param)
    return [_item(value, f"{param}[{i}]") for i, value in enumerate(values)]


def _item(value: Any, param: str) -> Json:
    if not isinstance(value, dict):
        raise BadRequest("input array items must be objects", param=param)
    given = {key: inner for key, inner in value.items() if inner is not None}
    kind = given.get("type")
    if kind is None and "role" not in given and isinstance(given.get("id"), str):
        kind = REFERENCE
    if kind is None or kind == "message":
        if "content" in value:  # some clients send an empty answer back as null
            given.setdefault("content", [])
        return _message(given, param)
    read = _READERS.get(kind) or foreign_items.reader(kind) if isinstance(kind, str) else None
    if read is None:
        known = ", ".join(sorted(["message", *_READERS]))
        raise BadRequest(f"input item type {str(kind)[:60]!r} is not supported; supported types: {known}", param=param)
    return read(given, param)


def _message(given: Json, param: str) -> Json:
    role = given.get("role")
    if not isinstance(role, str) or not role:
        raise BadRequest("input item role is missing or invalid", param=f"{param}.role")
    if "content" not in given:
        raise BadRequest("input item is missing required content field", param=f"{param}.content")
    content = given["content"]
    if isinstance(content, str):
        content = [{"type": "output_text" if role == "assistant" else "input_text", "text": content}]
    if not isinstance(content, list):
        raise BadRequest("input item content must be a string or array", param=f"{param}.content")
    parts = [
        _part(part, role, f"{param}.content[{i}]")
        for i, part in enumerate(content)
        # The item has the text of the audio as well.
        if role != "assistant" or not isinstance(part, dict) or part.get("type") != "output_audio"
    ]
    begun = role == "assistant" and given.get("status") in ("in_progress", "incomplete")
    status = "incomplete" if begun else "completed"
    return {"id": _id(given, "msg"), "type": "message", "role": role, "status": status, "content": parts}


def _id(given: Json, prefix: str) -> str:
    """Returns the id that an item has, or a new one with this prefix."""
    known = given.get("id")
    return known if isinstance(known, str) and known else item_id(prefix)


def _head(given: Json, prefix: str) -> Json:
    """Returns the first members of an item that is not a message: id, type and status."""
    return {"id": _id(given, prefix), "type": given["type"], "status": "completed"}


FILE_SOURCES = ("file_data", "file_id", "file_url")
"""The members of an input_file that have a file or name one, the first of which takes precedence."""


def _part(part: Any, role: str, param: str) -> Json:
    if not isinstance(part, dict):
        raise BadRequest("input content items must be objects", param=param)
    kind = part.get("type")
    if not isinstance(kind, str):
        raise BadRequest("input content item type is missing or invalid", param=f"{param}.type")
    if kind in ("input_text", "output_text", "text"):
        return _text(part, kind, role, param)
    if kind == "refusal":
        if not isinstance(part.get("refusal"), str):
            raise BadRequest("refusal requires a valid refusal field", param=param)
        return {"type": "refusal", "refusal": part["refusal"]}
    try:
        return _media(part, kind, param)
    except _NotRead as error:
        if role != "tool":
            raise
        return {"type": "input_text", "text": left_out(kind, error.message)}


class _NotRead(BadRequest):
    """Raised for a content part that is valid, but that this server cannot read."""


def _media(part: Json, kind: str, param: str) -> Json:
    if kind == "input_image":
        return _image(part, param)
    if kind == "input_audio":
        check_member(part, "data", param)
        return {"type": kind, kind: part[kind]}
    if kind == "input_file":
        return _file(part, param)
    raise _NotRead(f"unsupported input content item type: {kind[:60]}", param=f"{param}.type")


def _text(part: Json, kind: str, role: str, param: str) -> Json:
    if not isinstance(part.get("text"), str):
        raise BadRequest(f"{kind} requires a valid text field", param=f"{param}.text")
    if role == "assistant":
        logprobs = part.get("logprobs")
        stored = logprobs if isinstance(logprobs, list) else []
        return {"type": "output_text", "text": part["text"], "annotations": [], "logprobs": stored}
    return {"type": "input_text", "text": part["text"]}


def _file(part: Json, param: str) -> Json:
    source = next((name for name in FILE_SOURCES if isinstance(part.get(name), str)), None)
    if source is None:
        raise _NotRead(f"input_file requires one of {', '.join(FILE_SOURCES)}", param=param)
    name = part.get("filename")
    return {"type": "input_file", "filename": name if isinstance(name, str) else None, source: part[source]}


def _image(part: Json, param: str) -> Json:
    url, file_id, detail = part.get("image_url"), part.get("file_id"), part.get("detail")
    detail = detail if isinstance(detail, str) else "auto"
    if url is None and file_id is not None:
        if not isinstance(file_id, str):
            raise BadRequest("input_image.file_id is not a string", param=f"{param}.file_id")
        return {"type": "input_image", "file_id": file_id, "detail": detail}
    if url is None:
        raise BadRequest("input_image requires image_url field", param=f"{param}.image_url")
    if isinstance(url, dict):
        url = url.get("url")
        if not isinstance(url, str):
            raise BadRequest("input_image.image_url.url is missing or invalid", param=f"{param}.image_url.url")
    if not isinstance(url, str):
        raise BadRequest("input_image.image_url must be a string or object", param=f"{param}.image_url")
    return {"type": "input_image", "image_url": url, "detail": detail}


def _call(given: Json, param: str) -> Json:
    call_id = given.get("call_id", given.get("id"))
    if not isinstance(call_id, str):
        raise BadRequest("function_call item is missing required call_id (or id) field", param=param)
    return _read_call({"arguments": "", **given, "call_id": call_id}, "arguments", "fc", param)


def _read_call(given: Json, content: str, prefix: str, param: str) -> Json:
    said = _strings(given, ("call_id", "name", content), param)
    space = {"namespace": given["namespace"]} if isinstance(given.get("namespace"), str) else {}
    return {**_head(given, prefix), "call_id": said["call_id"], "name": said["name"], **space, content: said[content]}


def _call_output(given: Json, param: str) -> Json:
    output, call_id, kind = given.get("output"), given.get("call_id", ""), given["type"]
    if not isinstance(call_id, str):
        raise BadRequest(f"{kind}.call_id is not a string", param=f"{param}.call_id")
    if isinstance(output, list):
        output = [_part(part, "tool", f"{param}.output[{i}]") for i, part in enumerate(output)]
    elif not isinstance(output, str):
        raise BadRequest(f"{kind}.output must be a string or an array", param=f"{param}.output")
    prefix = "fco" if kind == "function_call_output" else "ctco"
    return _head(given, prefix) | {"call_id": call_id, "output": output}


def _reasoning(given: Json, param: str) -> Json:
    item = _head(given, "rs")
    for name, kind in (("summary", "summary_text"), ("content", "reasoning_text")):
        parts = given.get(name, [])
        if not isinstance(parts, list) or not all(
            isinstance(p, dict) and isinstance(p.get("text"), str) for p in parts
        ):
            raise BadRequest(f"reasoning.{name} must be an array of objects with a text field", param=f"{param}.{name}")
        if parts or name == "summary":
            item[name] = [{"type": kind, "text": part["text"]} for part in parts]
    if sealed := given.get("encrypted_content"):
        if not isinstance(sealed, str):
            raise BadRequest("reasoning.encrypted_content must be a string", param=f"{param}.encrypted_content")
        item["encrypted_content"] = sealed
    return item


def _reference(given: Json, param: str) -> Json:
    if not isinstance(given.get("id"), str) or not given["id"]:
        raise BadRequest("item_reference requires a valid id field", param=f"{param}.id")
    return {"type": REFERENCE, "id": given["id"]}


def _strings(given: Json, names: tuple[str, ...], param: str) -> Json:
    """Returns the named members of an item. Raises BadRequest if one of them is not a string."""
    for name in names:
        if not isinstance(given.get(name), str):
            raise BadRequest(f"{given['type']} item is missing required {name} field", param=f"{param}.{name}")
    return {name: given[name] for name in names}


def _mcp_listing(given: Json, param: str) -> Json:
    tools = given.get("tools")
    if not isinstance(tools, list) or not all(map(_is_listed, tools)):
        raise BadRequest("mcp_list_tools.tools must be objects with a name and an input_schema", param=f"{param}.tools")
    if len(tools) > MAX_LISTED:
        text = f"mcp_list_tools.tools must have no more than {MAX_LISTED} tools"
        raise BadRequest(text, param=f"{param}.tools")
    item = {"id": _id(given, "mcpl"), "type": given["type"], **_strings(given, ("server_label",), param)}
    return {**item, "tools": tools, "error": None}


def _is_listed(tool: Any) -> bool:
    return (
        isinstance(tool, dict)
        and isinstance(tool.get("name"), str)
        and isinstance(tool.get("input_schema"), dict)
        and isinstance(tool.get("description"), str | None)
        and isinstance(tool.get("annotations"), dict | None)
    )


def _mcp_call(given: Json, param: str) -> Json:
    item = _head(given, "mcp") | _strings(given, _CALLED, param)
    output, error, approval = given.get("output"), given.get("error"), given.get("approval_request_id")
    if not isinstance(output, str | None) or not isinstance(error, str | dict | None):
        raise BadRequest("mcp_call.output must be a string, and mcp_call.error an object", param=param)
    if not isinstance(approval, str | None):
        raise BadRequest("mcp_call.approval_request_id is not a string", param=f"{param}.approval_request_id")
    item["status"] = "completed" if error is None else "failed"
    return item | {"approval_request_id": approval, "output": output, "error": error}


def _approval_request(given: Json, param: str) -> Json:
    return {"id": _id(given, "mcpr"), "type": given["type"], **_strings(given, _CALLED, param)}


def _approval_response(given: Json, param: str) -> Json:
    if not isinstance(given.get("approve"), bool):
        raise BadRequest("mcp_approval_response.approve must be true or false", param=f"{param}.approve")
    if not isinstance(given.get("reason"), str | None):
        raise BadRequest("mcp_approval_response.reason is not a string", param=f"{param}.reason")
    item = {"id": _id(given, "mcpa"), "type": given["type"], **_strings(given, ("approval_request_id",), param)}
    return {**item, "approve": given["approve"], "reason": given.get("reason")}


_CALLED = ("server_label", "name", "arguments")
_READERS: dict[str, Callable[[Json, str], Json]] = {
    "function_call": _call,
    "function_call_output": _call_output,
    "custom_tool_call": lambda given, param: _read_call({"input": "", **given}, "input", "ctc", param),
    "custom_tool_call_output": _call_output,
    "reasoning": _reasoning,
    LISTING: _mcp_listing,
    CALL: _mcp_call,
    APPROVAL_REQUEST: _approval_request,
    APPROVAL_RESPONSE: _approval_response,
    compaction.KIND: compaction.read,
    REFERENCE: _reference,
}


# --- what a next turn needs ---


def is_usable(item: Json) -> bool:
    """Returns whether a later turn can use an output item; not a call that was cut off or has no result."""
    calls = ("function_call", "custom_tool_call", SEARCH_CALL, CALL)
    return item["type"] not in calls or item["status"] in ("completed", "failed")


def without_logprobs(items: list[Json]) -> list[Json]:
    """Drops log probabilities, which a prompt does not need, and which take a hundred times the memory of the text."""
    return [
        item if item["type"] != "message" else item | {"content": list(map(_plain_part, item["content"]))}
        for item in items
    ]


def _plain_part(part: Json) -> Json:
    return part | {"logprobs": []} if "logprobs" in part else part


# --- conversion to messages ---


def to_messages(items: list[Json]) -> list[Json]:
    """Converts items to chat messages. Consecutive reasoning, text and calls of the assistant become one message."""
    builder = _MessageBuilder({foreign_items.call_id(item) for item in items if foreign_items.is_output(item["type"])})
    for item in compaction.current(items):
        if not foreign_items.is_unshown(item):
            builder.add(item)
    return builder.finished()


class _MessageBuilder:
    """Collects chat messages from items; further items of the assistant extend its last message."""

    def __init__(self, answered: Set[str]) -> None:
        """Begins without a message; `answered` are the ids of calls whose results are separate items."""
        self.messages: list[Json] = []
        self._answered = answered
        self._requests: dict[str, Json] = {}  # approval requests by id

    def finished(self) -> list[Json]:
        """Returns the messages, and joins the reasoning of each to one text.

        While messages are collected, reasoning is a list, since a client may send thousands of reasoning items.
        """
        for message in self.messages:
            if "reasoning_content" in message:
                message["reasoning_content"] = "\n".join(message["reasoning_content"])
        return self.messages

    def add(self, item: Json) -> None:
        kind = item["type"]
        if kind == "reasoning":
            if text := _reasoning_text(item):
                self._add_reasoning(text)
        elif kind in ("function_call", "custom_tool_call"):
            custom = kind == "custom_tool_call"
            arguments = {"input": item["input"]} if custom else item["arguments"]
            self._add_call(item["call_id"], function_name(item["name"], item.get("namespace")), arguments)
        elif kind in ("function_call_output", "custom_tool_call_output"):
            reference = {"tool_call_id": item["call_id"]} if item["call_id"] else {}
            self.messages.append({"role": "tool", **reference, "content": _content(item["output"])})
        elif kind in (LISTING, CALL, APPROVAL_REQUEST, APPROVAL_RESPONSE):
            self._add_mcp(item)
        elif kind == compaction.KIND:
            self._join_users()
            self.messages.append({"role": "assistant", "content": compaction.text(item)})
        elif foreign_items.is_call(kind):
            self._add_foreign(item)
        elif foreign_items.is_output(kind):
            call_id = foreign_items.call_id(item)
            self.messages.append({"role": "tool", "tool_call_id": call_id, "content": foreign_items.output(item)})
        elif item["role"] == "assistant":
            self._turn("content")["content"] = _content(item["content"])
        else:
            self.messages.append({"role": item["role"], "content": _content(item["content"])})

    def _turn(self, *last: str) -> Json:
        """Returns the assistant's message at the end of the conversation, to which an item is added.

        A new one is begun if the last message has another role, or already has one of the members `last`, after which
        the item may not follow in the same message.
        """
        turn = self.messages[-1] if self.messages else {}
        if turn.get("role") != "assistant" or any(map(turn.get, last)):
            turn = {"role": "assistant", "content": ""}
            self.messages.append(turn)
        return turn

    def _add_call(self, call_id: str, name: str, arguments: str | Json) -> None:
        calls = self._turn().setdefault("tool_calls", [])
        calls.append({"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}})

    def _add_mcp(self, item: Json) -> None:
        """Adds an item of MCP tools. Lists of tools are not added, since the request itself has the tools."""
        kind = item["type"]
        if kind == CALL:
            error = item["error"]
            self._add_answered(item, item["output"] or "" if error is None else f"Error: {error_text(error)}")
        elif kind == APPROVAL_REQUEST:
            self._requests[item["id"]] = item
        elif kind == APPROVAL_RESPONSE:
            request = self._requests.get(item["approval_request_id"])
            if request is not None and not item["approve"]:
                self._add_answered(request, f"The user did not approve this call. {item['reason'] or ''}".rstrip())

    def _add_answered(self, item: Json, text: str) -> None:
        """Adds a call of an MCP tool, and its result as a message with the given text."""
        self._add_call(item["id"], function_name(item["name"], item["server_label"]), item["arguments"])
        self.messages.append({"role": "tool", "tool_call_id": item["id"], "content": text})

    def _add_foreign(self, item: Json) -> None:
        """Adds a call of another provider's tool, and its result unless that is a separate item."""
        call_id, found = foreign_items.call_id(item), foreign_items.result(item)
        self._add_call(call_id, foreign_items.tool(item), arguments(foreign_items.given(item)))
        if found is not None or call_id not in self._answered:
            self.messages.append({"role": "tool", "tool_call_id": call_id, "content": found or NO_RESULT})

    def _add_reasoning(self, text: str) -> None:
        self._turn("content", "tool_calls").setdefault("reasoning_content", []).append(text)

    def _join_users(self) -> None:
        """Joins consecutive messages of the user at the end to one, since many chat templates refuse two in a row."""
        turn: list[str | list[Json]] = []
        while self.messages and self.messages[-1]["role"] == "user":
            turn.append(self.messages.pop()["content"])
        parts: list[Json] = []
        for content in reversed(turn):
            parts += [{"type": "text", "text": content}] if isinstance(content, str) else content
        if parts:
            texts = [part.get("text") for part in parts]
            whole = "\n\n".join(filter(None, texts)) if None not in texts else parts
            self.messages.append({"role": "user", "content": whole})


def _reasoning_text(item: Json) -> str:
    """Returns the text of a reasoning item: its content if there is any, else its summary."""
    return "\n".join(part["text"] for part in item.get("content") or item["summary"])


def _content(content: str | list[Json]) -> str | list[Json]:
    """Converts an item's content for a chat message: to a string if it is a single text, else to parts."""
    if isinstance(content, str):
        return content
    parts = to_parts(content)
    return parts[0]["text"] if len(parts) == 1 and parts[0]["type"] == "text" else parts


def to_parts(content: str | list[Json]) -> list[Json]:
    """Converts an item's content to the parts of a chat message."""
    return [{"type": "text", "text": content}] if isinstance(content, str) else [_chat_part(part) for part in content]


def _chat_part(part: Json) -> Json:
    if part["type"] == "input_image":
        source = {"file_id": part["file_id"]} if "file_id" in part else {"url": part["image_url"]}
        return {"type": "image_url", "image_url": source | {"detail": part["detail"]}}
    if part["type"] == "input_audio":
        return part
    if part["type"] == "input_file":
        return {"type": "file", "file": {name: value for name, value in part.items() if name != "type"}}
    return {"type": "text", "text": part.get("text", part.get("refusal", ""))}
