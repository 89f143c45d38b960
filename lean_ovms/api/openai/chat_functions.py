"""OpenAI's older function calling in chat: `functions` and `function_call`, as clients before `tools` send them.

https://platform.openai.com/docs/api-reference/chat/create (deprecated fields). The functions become tools, of which one
is called at most, and the call is the message's `function_call`. Older messages: generation/messages.py.
"""

from __future__ import annotations

from typing import Any

from ...errors import BadRequest
from ...types import Json, ToolCallDelta, ToolCallStart
from ..fields import Field, Values
from ..schemas import FUNCTION, any_of, array, object_of

FINISH = "function_call"
FIELDS = (
    Field(
        name="functions",
        kind="array",
        help="OpenAI's older form of tools, which win over it; calls are function_call",
        schema=array(FUNCTION),
    ),
    Field(
        name="function_call",
        kind="any",
        help="OpenAI's older form of tool_choice: none, auto or a name",
        schema=any_of({"enum": ["none", "auto"]}, object_of({"name": {"type": "string"}})),
    ),
)


def read_functions(values: Values) -> tuple[list[Json], str | Json] | None:
    """The functions as tools, and tool_choice; None if there are none to be called so. Raises BadRequest."""
    if not values["functions"] or values["tools"] is not None:
        return None
    names = [_name(function, f"functions[{i}]") for i, function in enumerate(values["functions"])]
    tools = [{"type": "function", "function": function} for function in values["functions"]]
    return tools, _choice(values["function_call"], names)


def _name(function: Any, param: str) -> str:
    if not isinstance(function, dict) or not isinstance(function.get("name"), str) or not function["name"]:
        raise BadRequest("Each function must be an object with a name", param=param)
    if not isinstance(function.get("parameters"), (dict, type(None))):
        raise BadRequest("Function parameters are not a valid JSON object", param=f"{param}.parameters")
    return str(function["name"])


def _choice(call: Any, names: list[str]) -> str | Json:
    if call is None or call in ("none", "auto"):
        return call or "auto"
    name = call.get("name") if isinstance(call, dict) else None
    if not isinstance(name, str):
        raise BadRequest("function_call should be 'none', 'auto' or an object with a name", param="function_call")
    if name not in names:
        raise BadRequest(f"function_call names {name!r}, which is not among the functions", param="function_call")
    return {"type": "function", "function": {"name": name}}


def call_delta(event: ToolCallStart | ToolCallDelta) -> Json:
    """The delta of a piece of the call."""
    if isinstance(event, ToolCallStart):
        return {"function_call": {"name": event.name, "arguments": ""}}
    return {"function_call": {"arguments": event.text}}
