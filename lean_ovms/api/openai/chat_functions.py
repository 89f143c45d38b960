"""OpenAI's older function calling in chat: `functions` and `function_call`, as clients before `tools` send them.

https://platform.openai.com/docs/api-reference/chat/create (deprecated fields). The functions become tools, of which one
is called at most, and the call is the message's `function_call`. Older messages: generation/messages.py.
"""

from __future__ import annotations

from typing import Any

from ...errors import BadRequest
from ...types import Json
from ..fields import Field, Values
from ..schemas import FUNCTION, any_of, array, object_of

FINISH = "function_call"


def _functions(value: list[Any]) -> list[Json]:
    for place, function in enumerate(value):
        param = f"functions[{place}]"
        if not isinstance(function, dict) or not isinstance(function.get("name"), str) or not function["name"]:
            raise BadRequest("Each function must be an object with a name", param=param)
        if not isinstance(function.get("parameters"), dict | None):
            raise BadRequest("Function parameters are not a valid JSON object", param=f"{param}.parameters")
    return value


def _function_call(value: Any) -> str | Json:
    """The value in the form of tool_choice."""
    if value in ("none", "auto"):
        return str(value)
    name = value.get("name") if isinstance(value, dict) else None
    if not isinstance(name, str):
        raise BadRequest("function_call should be 'none', 'auto' or an object with a name", param="function_call")
    return {"type": "function", "function": {"name": name}}


FIELDS = (
    Field("functions", "array", "OpenAI's older form of tools, which have precedence; calls are then in function_call",
        read=_functions, schema=array(FUNCTION)),
    Field("function_call", "any", "OpenAI's older form of tool_choice: none, auto or a name", read=_function_call,
        schema=any_of({"enum": ["none", "auto"]}, object_of({"name": {"type": "string"}}))),
)  # fmt: skip


def read_functions(values: Values) -> tuple[list[Json], str | Json] | None:
    """The functions as tools, and tool_choice; None if there are none to be called so. Raises BadRequest."""
    if not values["functions"] or values["tools"] is not None:
        return None
    names = [function["name"] for function in values["functions"]]
    tools = [{"type": "function", "function": function} for function in values["functions"]]
    choice = values["function_call"] or "auto"
    if isinstance(choice, dict) and (name := choice["function"]["name"]) not in names:
        raise BadRequest(f"function_call names {name!r}, which is not among the functions", param="function_call")
    return tools, choice
