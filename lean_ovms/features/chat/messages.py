"""Reads the field `messages` and checks its form; the chat template decides on its meaning.

The rules and the error texts are those of OVMS and OpenAI:
https://github.com/openvinotoolkit/model_server/blob/main/docs/model_server_rest_api_chat.md,
https://platform.openai.com/docs/api-reference/chat.
"""

from __future__ import annotations

import json
from typing import Any

from ...api.fields import Values
from ...api.generation.common_fields import template_kwargs
from ...api.generation.content import checked_part, refuse_media
from ...api.generation.request import read_tools
from ...composition import Composition
from ...errors import BadRequest
from ...types import ChatPrompt, Json


def read_messages(value: Any, composition: Composition) -> list[Json]:
    """Reads the field `messages`, and converts older forms of messages to the current one. Raises BadRequest.

    Some features of the composition read content other than text.
    """
    if value is None:
        raise BadRequest("Messages missing in request", param="messages")
    if not isinstance(value, list):
        raise BadRequest("Messages are not an array", param="messages")
    if not value:
        raise BadRequest("Messages array cannot be empty", param="messages")
    messages = [_checked(message, f"messages[{index}]", composition) for index, message in enumerate(value)]
    lines = composition.changing_lines
    return _without_functions([_without_changing_line(message, lines) for message in messages])


def without_changing_line(text: str, lines: tuple[str, ...]) -> str:
    """Removes the first line of a system text if it begins with one of `lines`.

    Clients change such a line with each request, which would defeat the prefix cache.
    """
    return text.partition("\n")[2] if text.startswith(lines) else text


def _without_changing_line(message: Json, lines: tuple[str, ...]) -> Json:
    content = message.get("content")
    if message["role"] != "system" or not content:
        return message
    if isinstance(content, str):
        return {**message, "content": without_changing_line(content, lines)}
    parts = []
    for part in content:
        text = part.get("text")
        kept = without_changing_line(text, lines) if isinstance(text, str) else text
        if kept or kept == text:
            parts.append(part if kept == text else {**part, "text": kept})
    return {**message, "content": parts}


def _without_functions(messages: list[Json]) -> list[Json]:
    """Converts OpenAI's old function calling to tool calls: function_call of an assistant, and the role function."""
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


def _checked(message: Any, param: str, composition: Composition) -> Json:
    """Checks a message, and returns it with its content parts in chat's form. Raises BadRequest."""
    if not isinstance(message, dict):
        raise BadRequest("Message is not a JSON object", param=param)
    if not isinstance(message.get("role"), str):
        raise BadRequest("Every message must have 'role' field", param=f"{param}.role")
    content = message.get("content")
    if message.get("audio") and not content and not message.get("tool_calls"):
        raise BadRequest("spoken answers are not stored; send the transcript as content", param=f"{param}.audio")
    if isinstance(content, list):
        tool = message["role"] in ("tool", "function")
        places = [f"{param}.content[{index}]" for index in range(len(content))]
        pairs = zip(content, places, strict=True)
        parts = [checked_part(part, at, composition, of_tool=tool) for part, at in pairs]
        message = {**message, "content": parts}
    elif content is not None and not isinstance(content, str):
        raise BadRequest("Message content must be a string, an array or null", param=f"{param}.content")
    elif content is None and isinstance(message.get("refusal"), str):
        message = {**message, "content": message["refusal"]}
    checked: Json = _with_functions(message)
    _check_calls(checked, param)
    return checked


def _with_functions(message: Json) -> Json:
    """Converts a message's calls of OpenAI's custom tools, which take a text, to calls of functions."""
    calls = message.get("tool_calls")
    if not isinstance(calls, list) or not any(isinstance(call, dict) and "custom" in call for call in calls):
        return message
    return {**message, "tool_calls": list(map(_as_function, calls))}


def _as_function(call: Any) -> Any:
    custom = call.get("custom") if isinstance(call, dict) else None
    if not isinstance(custom, dict) or not isinstance(custom.get("input"), str):
        return call
    function = {"name": custom.get("name"), "arguments": json.dumps({"input": custom["input"]}, ensure_ascii=False)}
    return {"id": call.get("id"), "type": "function", "function": function}


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


def chat_prompt(
    values: Values, messages: list[Json], tools: list[Json], *, add_special_tokens: bool = False
) -> ChatPrompt:
    """Makes the prompt for a chat template from a request's fields and the messages that read_messages returned."""
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


def text_conversation(
    values: Values, no_images: str, composition: Composition, *, add_special_tokens: bool = False
) -> ChatPrompt:
    """Makes the prompt of a request that only needs the text of a conversation and generates nothing.

    Args:
        values: The values of the field messages and of the fields in OF_TEMPLATE.
        no_images: The text of the error for content such as images.
        composition: The features.
        add_special_tokens: Whether the tokenizer adds special tokens such as BOS.

    Raises:
        BadRequest: The conversation is not well-formed, or has content other than text.
    """
    tools, _ = read_tools(values["tools"], None)
    messages = read_messages(values["messages"], composition)
    refuse_media(messages, no_images, composition)
    return chat_prompt(values, messages, tools, add_special_tokens=add_special_tokens)
