"""The fields `messages` and `tools`: their shape is checked here; the chat template gives them their meaning.

Rules and texts: contract section 2.6.
"""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

from ...errors import BadRequest
from ...models.text_model import Model
from ...types import ChatPrompt, Json

DETAILS = (None, "auto", "low", "high", "original")


def read_messages(value: Any) -> list[Json]:
    """The conversation, as it came, if it is well-formed. Raises BadRequest."""
    if value is None:
        raise BadRequest("Messages missing in request", param="messages")
    if not isinstance(value, list):
        raise BadRequest("Messages are not an array", param="messages")
    if not value:
        raise BadRequest("Messages array cannot be empty", param="messages")
    for index, message in enumerate(value):
        _check_message(message, f"messages[{index}]")
    return value


def _check_message(message: Any, param: str) -> None:
    if not isinstance(message, dict):
        raise BadRequest("Message is not a JSON object", param=param)
    if not isinstance(message.get("role"), str):
        raise BadRequest("Every message must have 'role' field", param=f"{param}.role")
    content = message.get("content")
    if isinstance(content, list):
        for index, part in enumerate(content):
            _check_part(part, f"{param}.content[{index}]")
    elif content is not None and not isinstance(content, str):
        raise BadRequest("Message content must be a string, an array or null", param=f"{param}.content")
    calls = message.get("tool_calls")
    if calls is not None and not isinstance(calls, list):
        raise BadRequest("tool_calls must be an array", param=f"{param}.tool_calls")
    for call in calls or ():
        if not isinstance(call, dict):
            raise BadRequest("Each tool_call must be an object", param=f"{param}.tool_calls")
        if not isinstance(call.get("function"), dict):
            raise BadRequest("Each tool_call must have a 'function' object", param=f"{param}.tool_calls")


def _check_part(part: Any, param: str) -> None:
    start = "Invalid message structure - "
    if not isinstance(part, dict):
        raise BadRequest(start + "content array should contain objects", param=param)
    kind = part.get("type")
    if not isinstance(kind, str):
        raise BadRequest(start + "content object type missing", param=param)
    if kind in ("text", "refusal"):
        if not isinstance(part.get(kind), str):
            raise BadRequest(start + "content text missing", param=param)
    elif kind == "image_url":
        _check_image(part.get("image_url"), f"{param}.image_url")
    else:
        raise BadRequest(f"Unsupported content type: text and images are read, not {kind[:40]!r}", param=param)


def _check_image(image: Any, param: str) -> None:
    start = "Invalid message structure - "
    if isinstance(image, str):  # vLLM and Mistral take the address alone, too
        return
    if not isinstance(image, dict):
        raise BadRequest(start + "content image_url missing", param=param)
    if not isinstance(image.get("url"), str):
        raise BadRequest(start + "image_url does not have url field", param=f"{param}.url")
    if image.get("detail") not in DETAILS:
        raise BadRequest("image_url.detail must be one of: auto, low, high", param=f"{param}.detail")


_knows_developer: WeakKeyDictionary[Model, bool] = WeakKeyDictionary()


def map_developer_role(messages: list[Json], model: Model) -> list[Json]:
    """The messages, those of role developer as system messages where the model's chat template does not show that role.

    OpenAI's newer clients send system messages as developer messages. Many templates drop them silently, some refuse
    them. Raises RequestError while the template is not known.
    """
    if not any(message["role"] == "developer" for message in messages) or _shows_developer(model):
        return messages
    return [{**message, "role": "system"} if message["role"] == "developer" else message for message in messages]


def _shows_developer(model: Model) -> bool:
    if model not in _knows_developer:
        probe = "probe9needle"
        messages = [{"role": "developer", "content": probe}, {"role": "user", "content": "Hey"}]
        try:
            _knows_developer[model] = model.shows(ChatPrompt(messages=messages), probe)
        except BadRequest:
            _knows_developer[model] = False
    return _knows_developer[model]


def read_tools(tools: Any, choice: Any) -> tuple[list[Json], str | Json]:
    """The tools left after tool_choice, in OpenAI's nested form, and the choice itself. Raises BadRequest.

    choice: "none" leaves no tools; a named function leaves only that one, allowed_tools those that it lists.
    """
    if isinstance(choice, dict) and choice.get("type") == "allowed_tools":
        return _allowed(tools, choice)
    found = [_tool(tool, f"tools[{i}]") for i, tool in enumerate(_array(tools))]
    if isinstance(choice, str):
        if choice not in ("none", "auto", "required"):
            raise BadRequest("tool_choice should be either 'none' or 'auto' or 'required'", param="tool_choice")
        if choice == "required" and not found:
            raise BadRequest("tool_choice is required, but no tools are given", param="tool_choice")
        return ([] if choice == "none" else found), choice
    if choice is None:
        return found, "auto"
    if not isinstance(choice, dict):
        raise BadRequest("tool_choice is not a valid JSON object or string", param="tool_choice")
    name = _named(choice)
    kept = [tool for tool in found if tool["function"]["name"] == name]
    if not kept:
        raise BadRequest(f"tool_choice names {name!r}, which is not among the tools", param="tool_choice")
    return kept, {"type": "function", "function": {"name": name}}


def _allowed(tools: Any, choice: Json) -> tuple[list[Json], str | Json]:
    """OpenAI's {"type": "allowed_tools", "allowed_tools": {"mode", "tools"}}, or (Responses) mode and tools in it."""
    inner = choice.get("allowed_tools", choice)
    mode, listed = (inner.get("mode"), inner.get("tools")) if isinstance(inner, dict) else (None, None)
    if mode not in ("auto", "required") or not isinstance(listed, list):
        raise BadRequest("tool_choice allowed_tools needs a mode (auto, required) and tools", param="tool_choice")
    names = {_named(tool) for tool in listed if isinstance(tool, dict)}
    found, _ = read_tools(tools, None)
    kept = [tool for tool in found if tool["function"]["name"] in names]
    if names - {tool["function"]["name"] for tool in kept} or not kept:
        raise BadRequest("tool_choice allows a tool that is not among the tools", param="tool_choice")
    return kept, mode


def _array(tools: Any) -> list[Any]:
    if tools is None:
        return []
    if not isinstance(tools, list):
        raise BadRequest("Tools are not an array", param="tools")
    return tools


def _tool(tool: Any, param: str) -> Json:
    """One tool in nested form; the flat form of the Responses API is accepted too."""
    if not isinstance(tool, dict):
        raise BadRequest("Tool is not a JSON object", param=param)
    if "function" in tool:
        function = tool["function"]
        if not isinstance(function, dict):
            raise BadRequest("Function is not a valid JSON object", param=param)
        function = {key: value for key, value in function.items() if value is not None}
    else:
        if not isinstance(tool.get("type"), str):
            raise BadRequest("Tool type is missing or invalid", param=param)
        if tool["type"] != "function":
            raise BadRequest("Only function tools are supported", param=param)
        function = {key: value for key, value in tool.items() if key != "type" and value is not None}
    if not isinstance(function.get("name"), str) or not function["name"]:
        raise BadRequest("Function object does not contain a valid name field", param=f"{param}.function.name")
    if "parameters" in function and not isinstance(function["parameters"], dict):
        raise BadRequest("Function parameters are not a valid JSON object", param=f"{param}.function.parameters")
    return (
        {**tool, "type": "function", "function": function}
        if "function" in tool
        else {
            "type": "function",
            "function": function,
        }
    )


def _named(choice: Json) -> str:
    function = choice.get("function")
    if function is None:
        name = choice.get("name")
        if not isinstance(name, str):
            raise BadRequest("tool_choice.name is not a valid string", param="tool_choice")
        return name
    if not isinstance(function, dict):
        raise BadRequest("tool_choice.function is not a valid JSON object", param="tool_choice")
    if not isinstance(function.get("name"), str):
        raise BadRequest("tool_choice.function.name is not a valid string", param="tool_choice")
    return str(function["name"])
