"""Converts Anthropic's `system` and `messages` to the messages of OpenAI's chat API.

Blocks that Anthropic's servers have written into a conversation become text: calls of their tools, results, summaries.
Files by their id or URL are refused, since the model would answer without their contents.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain
from typing import Any

from ....errors import BadRequest
from ....types import Json
from ...chat.content import OF_TOOL, check_member, left_out
from ...chat.foreign import arguments, as_text, unshown_line
from ...chat.request import without_changing_line
from ..feature import CHANGING_LINES
from .signatures import omitted_text

ROLES = ("user", "assistant", "system")
CALLS = ("tool_use", "server_tool_use", "mcp_tool_use")
RESULT_ENDS = "_tool_result"
"""The ends of the types of blocks with a result of one of Anthropic's own tools."""
UNSHOWN = ("container_upload", "fallback", "mcp_tool_listing", "tool_addition", "tool_removal")
"""The types of blocks without any content for the model."""
SUMMARY = "Summary of the conversation so far:\n"


def to_messages(system: Any, messages: list[Any]) -> tuple[list[Json], list[str]]:
    """Returns the conversation, and warnings about what has no effect in its blocks. Raises BadRequest."""
    if not messages:
        raise BadRequest("messages: at least one message is required", param="messages")
    found, unshown = list[Json](), list[Block]()
    if system is not None:
        _add_system(found, _system(system, "system"))
    for place, message in enumerate(messages):
        _add(found, message, f"messages.{place}", unshown)
    if all(message["role"] == "system" for message in found):
        raise BadRequest("messages: at least one message of a user or an assistant must have content", param="messages")
    warnings = unshown_line([place for _, place in unshown], [block["type"] for block, _ in unshown])
    if any(map(_asks_for_citations, messages)):
        warnings.append("citations are not supported; the answer has none")
    return list(map(_joined, found)), warnings


def _asks_for_citations(message: Json) -> bool:
    """Returns whether a document or a search result of a message, or of a tool's result in it, is to be cited."""
    blocks = message["content"] if isinstance(message["content"], list) else []
    inner = [block["content"] for block in blocks if isinstance(block.get("content"), list)]
    asked = [block.get("citations") for block in chain(blocks, *inner) if isinstance(block, dict)]
    return any(isinstance(one, dict) and one.get("enabled") is True for one in asked)


def is_prefill(messages: list[Json]) -> bool:
    """Returns whether the last message is the assistant's, so that the answer continues it."""
    last = messages[-1]
    return last["role"] == "assistant" and bool(last["content"]) and "tool_calls" not in last


def _system(content: Any, param: str) -> str:
    """Returns the text of a system prompt, whose blocks are joined by newlines."""
    if isinstance(content, str):
        return without_changing_line(content, CHANGING_LINES)
    if not isinstance(content, list):
        raise BadRequest(f"{param} must be a string or an array of text blocks", param=param)
    texts = [_text(_object(block, f"{param}.{i}"), f"{param}.{i}") for i, block in enumerate(content)]
    return "\n".join(filter(None, (without_changing_line(text, CHANGING_LINES) for text in texts)))


def _turn(found: list[Json], role: str) -> Json:
    """Returns the last message if it has this role, or else adds a new one.

    Consecutive turns of one role become one, as in Anthropic's API. Its texts are lists until the end, since a client
    may send tens of thousands of blocks.
    """
    if not found or found[-1]["role"] != role:
        found.append({"role": role, "content": []})
    return found[-1]


def _joined(message: Json) -> Json:
    """Returns a message with its texts joined. A user's single text becomes a string."""
    content = message["content"]
    if message["role"] in ("system", "assistant"):
        message["content"] = "\n".join(content)
    elif message["role"] == "user" and len(content) == 1 and content[0]["type"] == "text":
        message["content"] = content[0]["text"]
    if "reasoning_content" in message:
        message["reasoning_content"] = "\n".join(message["reasoning_content"])
    return message


def _part(text: str) -> Json:
    return {"type": "text", "text": text}


def _object(block: Any, param: str) -> Json:
    if not isinstance(block, dict) or not isinstance(block.get("type"), str):
        raise BadRequest(f"{param}: each block must be an object with a type", param=param)
    return block


def _required(block: Json, name: str, param: str) -> str:
    """Returns the text of a member. Raises BadRequest if it is missing."""
    value = block.get(name)
    if not isinstance(value, str):
        raise _missing(f"{param}.{name}")
    return value


def _missing(param: str) -> BadRequest:
    return BadRequest(f"{param}: Field required", param=param)


def _answer(block: Json, text: str, param: str) -> Json:
    """Returns the message of a result, whose text says if the call has failed: chat templates do not know is_error."""
    if block.get("is_error") is True and "error" not in text[:40].lower():
        text = f"Error: {text}"
    return {"role": "tool", "tool_call_id": _required(block, "tool_use_id", param), "content": text}


def _add(found: list[Json], message: Any, param: str, unshown: list[Block]) -> None:
    if not isinstance(message, dict):
        raise BadRequest(f"{param}: each message must be an object", param=param)
    role, content = message.get("role"), message.get("content")
    if role not in ROLES:
        raise BadRequest(f"{param}.role must be one of: {', '.join(ROLES)}", param=f"{param}.role")
    if content is None and "content" in message:  # some clients send an empty answer back as null
        content = ""
    if role == "system":
        return _add_system(found, _system(content, f"{param}.content"))
    if isinstance(content, str):
        content = [_part(content)]
    if not isinstance(content, list):
        raise BadRequest(f"{param}.content must be a string or an array of blocks", param=f"{param}.content")
    add = _add_assistant if role == "assistant" else _add_user
    blocks = [(_object(b, f"{param}.content.{i}"), f"{param}.content.{i}") for i, b in enumerate(content)]
    unshown += [block for block in blocks if block[0]["type"] in UNSHOWN]
    add(found, [block for block in blocks if block[0]["type"] not in UNSHOWN])
    return None


Block = tuple[Json, str]
"""A content block, and its path in the body for errors."""


def _add_system(found: list[Json], text: str) -> None:
    if text:
        _turn(found, "system")["content"].append(text)


def _add_user(found: list[Json], blocks: list[Block]) -> None:
    parts: list[Json] = []
    answers = any(block["type"] == "tool_result" for block, _ in blocks)
    for block, param in blocks:
        if block["type"] != "tool_result":
            own = _user_parts(block, param)
            # Claude Code sends a file like this after its tool Read has opened it.
            if answers and block["type"] == "document":
                own = [part if part["type"] == "text" else {**part, OF_TOOL: True} for part in own]
            parts += own
            continue
        if any(part["type"] == "text" for part in parts):
            _turn(found, "user")["content"] += parts
            parts = []
        answer, images = _tool_result(block, param)
        found.append(answer)
        parts += images  # templates read no images in the role tool, so they follow in the user's message
    if parts:
        _turn(found, "user")["content"] += parts


def _tool_result(block: Json, param: str) -> tuple[Json, list[Json]]:
    """Returns the message of a result with its text, and its images."""
    content = block.get("content")
    if content is None or isinstance(content, str):
        parts = [_part(content or "")]
    elif isinstance(content, list):
        places = [f"{param}.content.{i}" for i in range(len(content))]
        parts = [part for b, at in zip(content, places, strict=True) for part in _parts_of_tool(_object(b, at), at)]
    else:
        raise BadRequest(f"{param}.content must be a string or an array of blocks", param=f"{param}.content")
    text = "\n".join(part["text"] for part in parts if part["type"] == "text")
    images = [{**part, OF_TOOL: True} for part in parts if part["type"] != "text"]
    return _answer(block, text, param), images


def _add_assistant(found: list[Json], blocks: list[Block]) -> None:
    if not blocks:
        return
    turn = first = _turn(found, "assistant")
    for block, param in blocks:
        if block["type"].endswith(RESULT_ENDS):
            turn = _add_result(found, block, param)
        elif block["type"] == "compaction":
            turn = _add_summary(found, block, param)
        else:
            _extend(turn, block, param)
    if turn is not first and len(turn) == 2 and not turn["content"]:
        found.pop()  # nothing follows the result of a call or the summary


def _extend(turn: Json, block: Json, param: str) -> None:
    """Adds a block that a model has written to a turn of the assistant. Raises BadRequest."""
    kind = block["type"]
    if kind == "text":
        if text := _text(block, param):
            turn["content"].append(text)
    elif kind == "thinking":
        if thought := _required(block, "thinking", param) or omitted_text(block.get("signature")):
            turn.setdefault("reasoning_content", []).append(thought)
    elif kind in CALLS:
        turn.setdefault("tool_calls", []).append(_tool_use(block, param))
    elif kind != "redacted_thinking":  # a redacted block contains nothing that can be read here
        raise _unsupported(kind, param)


def _add_result(found: list[Json], block: Json, param: str) -> Json:
    """Adds the result of a tool that Anthropic's servers ran. Returns the assistant's next turn. Raises BadRequest."""
    found.append(_answer(block, as_text(block.get("content") or ""), param))
    return _turn(found, "assistant")


def _add_summary(found: list[Json], block: Json, param: str) -> Json:
    """Replaces the messages so far by a summary of them, and returns the assistant's next turn. Raises BadRequest."""
    text = block.get("content")
    if not isinstance(text, str | None):
        raise BadRequest(f"{param}.content must be a string", param=f"{param}.content")
    if text:
        found[:] = [message for message in found if message["role"] == "system"]
        _turn(found, "user")["content"].append(_part(f"{SUMMARY}{text}"))
    return _turn(found, "assistant")


def _tool_use(block: Json, param: str) -> Json:
    for name in ("id", "name"):
        if not _required(block, name, param):
            raise _missing(f"{param}.{name}")
    given = {} if block.get("input") is None else block["input"]
    if not isinstance(given, dict):
        raise BadRequest(f"{param}.input must be an object", param=f"{param}.input")
    function: Json = {"name": block["name"], "arguments": given}
    if block["type"] != "tool_use":  # the other provider's server has already executed the call
        server = block.get("server_name")
        name = f"{server}__{block['name']}" if isinstance(server, str) else block["name"]
        function = {"name": name, "arguments": arguments(given)}
    return {"id": block["id"], "type": "function", "function": function}


def _unsupported(kind: str, param: str) -> BadRequest:
    known = "text, image, document, search_result, tool_use, tool_result, thinking, redacted_thinking, and the "
    known += "OpenAI types input_audio and audio_url"
    return _NotRead(
        f"{param}.type: blocks of type {kind[:60]!r} are not supported; supported types are {known}", param=param
    )


def _text(block: Json, param: str) -> str:
    if block["type"] != "text":
        raise _unsupported(block["type"], param)
    return _required(block, "text", param)


# --- blocks of a user, and of the result of a tool: content parts of chat


def _user_parts(block: Json, param: str) -> list[Json]:
    reader = _READERS.get(block["type"])
    if reader is None:
        raise _unsupported(block["type"], param)
    return reader(block, param)


def _parts_of_tool(block: Json, param: str) -> list[Json]:
    """Returns the chat parts of a block in a tool's result; a text replaces content that this server cannot read."""
    try:
        return _user_parts(block, param)
    except _NotRead as error:
        return [_part(left_out(block["type"], error.message))]


class _NotRead(BadRequest):
    """Raised for a block that is valid, but that this server cannot read."""


def _texts(block: Json, param: str) -> list[Json]:
    text = _text(block, param)
    return [_part(text)] if text else []


def _image(block: Json, param: str) -> list[Json]:
    source, at = block.get("source"), f"{param}.source"
    kind = source.get("type") if isinstance(source, dict) else None
    if not isinstance(source, dict) or kind not in ("base64", "url"):
        raise _NotRead(f"{at}.type must be base64 or url", param=at)
    if kind == "url":
        url = _required(source, "url", at)
    else:
        url = f"data:{_required(source, 'media_type', at)};base64,{_required(source, 'data', at)}"
    return [{"type": "image_url", "image_url": {"url": url}}]


def _audio(block: Json, param: str) -> list[Json]:
    """Returns the chat part of an audio block, which has the form of OpenAI's API, as Anthropic's has none."""
    kind = block["type"]
    if kind != "audio_url" or not isinstance(block.get(kind), str):
        check_member(block, "data" if kind == "input_audio" else "url", param)
    return [{name: block[name] for name in ("type", block["type"])}]


PDF_URL = "data:application/pdf;base64,"


def _document(block: Json, param: str) -> list[Json]:
    """Returns the chat parts of a document: its title and context, and then its text or its content blocks."""
    source, at = block.get("source"), f"{param}.source"
    kind = source.get("type") if isinstance(source, dict) else None
    names = [block[name] for name in ("title", "context") if isinstance(block.get(name), str) and block[name]]
    head = [_part(name) for name in names]
    if isinstance(source, dict) and kind == "text" and isinstance(source.get("data"), str):
        return [*head, _part(source["data"])]
    content = source.get("content") if isinstance(source, dict) and kind == "content" else None
    if isinstance(content, str):
        return [*head, _part(content)]
    if isinstance(content, list):
        at = f"{at}.content"
        inner = [p for i, b in enumerate(content) for p in _user_parts(_object(b, f"{at}.{i}"), f"{at}.{i}")]
        return head + inner
    if isinstance(source, dict) and (kind, source.get("media_type")) == ("base64", "application/pdf"):
        return [*head, {"type": "file", "file": {"file_data": PDF_URL + _required(source, "data", at)}}]
    if isinstance(source, dict) and kind == "url":
        return [*head, {"type": "file", "file": {"file_url": _required(source, "url", at)}}]
    raise _NotRead(f"{at}: a document must be a text, a PDF in base64, or a URL", param=at)


def _search_result(block: Json, param: str) -> list[Json]:
    content, at = block.get("content"), f"{param}.content"
    if not isinstance(content, list):
        raise _missing(at)
    head = [str(block[name]) for name in ("title", "source") if isinstance(block.get(name), str)]
    texts = [_text(_object(b, f"{at}.{i}"), f"{at}.{i}") for i, b in enumerate(content)]
    return [_part("\n".join([*head, *texts]))]


def _tool_reference(block: Json, param: str) -> list[Json]:
    """Returns the name of a tool that the client's own search has found, but that is not in its tools, as text."""
    return [_part(_required(block, "tool_name", param))]


_READERS: dict[str, Callable[[Json, str], list[Json]]] = {
    "text": _texts,
    "image": _image,
    "input_audio": _audio,
    "audio_url": _audio,
    "document": _document,
    "search_result": _search_result,
    "tool_reference": _tool_reference,
}
