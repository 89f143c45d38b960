"""The field `messages`: its shape is checked here; the chat template gives it its meaning.

The rules and the texts of errors are those of OVMS and OpenAI:
https://github.com/openvinotoolkit/model_server/blob/main/docs/model_server_rest_api_chat.md,
https://platform.openai.com/docs/api-reference/chat.
"""

from __future__ import annotations

from typing import Any

from ...errors import BadRequest
from ...types import ChatPrompt, Json
from ..fields import Values
from .audio_input import PARTS, check_audio
from .common_fields import template_kwargs
from .images import refuse_media
from .tools import read_tools

DETAILS = (None, "auto", "low", "high", "original")


def read_messages(value: Any) -> list[Json]:
    """The conversation if it is well-formed, with older and other forms of chat in today's. Raises BadRequest."""
    if value is None:
        raise BadRequest("Messages missing in request", param="messages")
    if not isinstance(value, list):
        raise BadRequest("Messages are not an array", param="messages")
    if not value:
        raise BadRequest("Messages array cannot be empty", param="messages")
    for index, message in enumerate(value):
        _check_message(message, f"messages[{index}]")
    return _without_functions(_with_chat_parts([_without_billing(message) for message in value]))


_BILLING = "x-anthropic-billing-header:"
"""A system text of Claude Code begins with this line, which changes with each request: no prefix would be cached."""


def without_billing(text: str) -> str:
    """A system text without that line."""
    return text.partition("\n")[2] if text.startswith(_BILLING) else text


def _without_billing(message: Json) -> Json:
    content = message.get("content")
    if message["role"] != "system" or not content:
        return message
    if isinstance(content, str):
        return {**message, "content": without_billing(content)}
    parts = []
    for part in content:
        text = part.get("text")
        kept = without_billing(text) if isinstance(text, str) else text
        if kept or kept == text:
            parts.append(part if kept == text else {**part, "text": kept})
    return {**message, "content": parts}


_CHAT_PARTS = {"input_text": "text", "output_text": "text", "refusal": "text", "input_image": "image_url"}
"""Content parts of the Responses API, which vLLM takes in chat as well, and refusals, and what they are in chat."""


def _with_chat_parts(messages: list[Json]) -> list[Json]:
    lists = [m["content"] for m in messages if isinstance(m.get("content"), list)]
    if not any(part["type"] in _CHAT_PARTS for content in lists for part in content):
        return messages
    return [
        {**m, "content": [_chat_part(part) for part in m["content"]]} if isinstance(m.get("content"), list) else m
        for m in messages
    ]


def _chat_part(part: Json) -> Json:
    kind = _CHAT_PARTS.get(part["type"])
    if kind == "text":
        return {"type": "text", "text": part["refusal" if part["type"] == "refusal" else "text"]}
    if kind is None:
        return part
    image = part["image_url"]
    detail = {"detail": part["detail"]} if part.get("detail") and isinstance(image, str) else {}
    return {"type": kind, "image_url": {"url": image, **detail} if isinstance(image, str) else image}


def _without_functions(messages: list[Json]) -> list[Json]:
    """OpenAI's old function calling as tool calls: function_call of an assistant, and the role function."""
    if not any(m["role"] == "function" or m.get("function_call") for m in messages):
        return messages
    found, number = [], 0
    for message in messages:
        if call := message.get("function_call"):
            number += 1
            calls = [{"id": f"call_{number}", "type": "function", "function": call}]
            message = {**message, "tool_calls": message.get("tool_calls") or calls}
            del message["function_call"]
        elif message["role"] == "function":
            message = {**message, "role": "tool", "tool_call_id": f"call_{number}"}
        found.append(message)
    return found


def _check_message(message: Any, param: str) -> None:
    if not isinstance(message, dict):
        raise BadRequest("Message is not a JSON object", param=param)
    if not isinstance(message.get("role"), str):
        raise BadRequest("Every message must have 'role' field", param=f"{param}.role")
    content = message.get("content")
    if message.get("audio") and not content and not message.get("tool_calls"):
        raise BadRequest("spoken answers are not kept: send the transcript as content", param=f"{param}.audio")
    if isinstance(content, list):
        for index, part in enumerate(content):
            _check_part(part, f"{param}.content[{index}]")
    elif content is not None and not isinstance(content, str):
        raise BadRequest("Message content must be a string, an array or null", param=f"{param}.content")
    _check_calls(message, param)


def _check_calls(message: Json, param: str) -> None:
    calls = message.get("tool_calls")
    if calls is not None and not isinstance(calls, list):
        raise BadRequest("tool_calls must be an array", param=f"{param}.tool_calls")
    old = message.get("function_call")
    if old is not None and not (isinstance(old, dict) and isinstance(old.get("name"), str)):
        raise BadRequest("function_call must be an object with a name", param=f"{param}.function_call")
    for call in calls or ():
        if not isinstance(call, dict):
            raise BadRequest("Each tool_call must be an object", param=f"{param}.tool_calls")
        if not isinstance(call.get("function"), dict):
            raise BadRequest("Each tool_call must have a 'function' object", param=f"{param}.tool_calls")
        if not isinstance(call["function"].get("name"), str):
            raise BadRequest("The function of each tool_call must have a name", param=f"{param}.tool_calls")


def _check_part(part: Any, param: str) -> None:
    start = "Invalid message structure - "
    if not isinstance(part, dict):
        raise BadRequest(start + "content array should contain objects", param=param)
    kind = part.get("type")
    if not isinstance(kind, str):
        raise BadRequest(start + "content object type missing", param=param)
    if kind in ("text", "refusal", "input_text", "output_text"):
        if not isinstance(part.get("refusal" if kind == "refusal" else "text"), str):
            raise BadRequest(start + "content text missing", param=param)
    elif kind in ("image_url", "input_image"):
        _check_image(part.get("image_url"), f"{param}.image_url")
    elif kind == "video_url":
        _check_image(part.get(kind), f"{param}.{kind}", kind)
    elif kind in PARTS:
        check_audio(part, param)
    else:
        raise BadRequest(
            f"Unsupported content type: text, images, videos and audio are read, not {kind[:40]!r}", param=param
        )


def _check_image(image: Any, param: str, name: str = "image_url") -> None:
    start = "Invalid message structure - "
    if isinstance(image, str):  # vLLM and Mistral take the address alone, too
        return
    if not isinstance(image, dict):
        raise BadRequest(f"{start}content {name} missing", param=param)
    if not isinstance(image.get("url"), str):
        raise BadRequest(f"{start}{name} does not have url field", param=f"{param}.url")
    if image.get("detail") not in DETAILS:
        raise BadRequest(f"{name}.detail must be one of: auto, low, high", param=f"{param}.detail")


def chat_prompt(
    values: Values, messages: list[Json], tools: list[Json], *, add_special_tokens: bool = False
) -> ChatPrompt:
    """From the fields of a chat template; messages as read_messages returns them.

    The template says which of these exclude each other, and which of its variables a client may set.
    """
    add, carry_on = values["add_generation_prompt"], values["continue_final_message"]
    return ChatPrompt(
        messages=messages,
        tools=tools,
        template_kwargs=template_kwargs(values),
        add_generation_prompt=not carry_on if add is None else add,
        continue_final_message=carry_on,
        add_special_tokens=add_special_tokens,
        template=values["chat_template"] or "",
        frames=values.get("media_io_kwargs") or {},
    )


def text_conversation(values: Values, no_images: str, *, add_special_tokens: bool = False) -> ChatPrompt:
    """The conversation of values, which have messages and OF_TEMPLATE's fields, and generate nothing.

    no_images: the reason for the error if there is an image. Raises BadRequest.
    """
    tools, _ = read_tools(values["tools"], None)
    messages = read_messages(values["messages"])
    refuse_media(messages, no_images)
    return chat_prompt(values, messages, tools, add_special_tokens=add_special_tokens)
