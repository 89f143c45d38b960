"""The fields `tools`, `tool_choice` and `parallel_tool_calls`: which tools the model is offered, and what it must call.

With the forms that an answer may be asked to have they are the rule of an answer, which a feature reads.

The rules and the texts of errors are OVMS's and OpenAI's: messages.py has the sources.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from ...config import Config
from ...errors import BadRequest
from ...manifest import ANSWER_RULES
from ...types import Json, OutputConstraint, SamplingParams
from ..fields import Values
from .common_fields import FORMS


@dataclass(frozen=True, slots=True)
class ToolOffer:
    """The tools that are left after tool_choice, and what is demanded of calls."""

    tools: list[Json]
    """The tools that the model sees."""
    required: bool = False
    """Whether one of them must be called."""
    parallel: bool | None = None
    """Whether several may be called; None: the client does not say."""
    strict: bool = False
    """Whether a tool is strict, so that calls keep to the schemas also when the model decides whether it calls
    (OpenAI's promise)."""


NO_TOOLS = ToolOffer([])


def read_offer(tools: Any, choice: Any, parallel: bool | None) -> ToolOffer:
    """Reads the values of the TOOLS fields. Raises BadRequest."""
    if tools is None and choice is None:
        return NO_TOOLS
    tools, choice = read_tools(tools, choice)
    several = False if isinstance(choice, dict) else parallel  # a named function is called once, as OpenAI does
    strict = any(tool["function"].get("strict") is True for tool in tools)
    return ToolOffer(tools, choice != "auto", several, strict)


class ReadRule(Protocol):
    """Reads what the answer to a request must match."""

    def __call__(
        self, asked: Json, offer: ToolOffer, config: Config, sampling: SamplingParams, *, combines: bool
    ) -> tuple[OutputConstraint | None, list[str]]:
        """Returns what the answer must match, None for any text, and warnings for forms that are not imposed.

        Args:
            asked: The values of the FORMS that the client asks for, by their names.
            offer: The tools, and whether one must be called.
            config: The model's configuration.
            sampling: The parameters of the request.
            combines: Whether the engine's grammars go with beam search and min_tokens.

        Raises:
            BadRequest: A form is wrong, too large, or excludes another one or a call that is required.
        """


WITHOUT = "which this server was started without"


def answer_rule(
    values: Values, offer: ToolOffer, config: Config, sampling: SamplingParams, *, combines: bool
) -> tuple[OutputConstraint | None, list[str]]:
    """Returns what an answer must match as a ReadRule does; a server without one refuses all that asks for a form.

    Args:
        values: The values of the body.
        offer: The tools, and whether one must be called.
        config: The model's configuration.
        sampling: The parameters of the request.
        combines: Whether the engine's grammars go with beam search and min_tokens.

    Raises:
        BadRequest: What is asked for cannot be.
    """
    asked = {name: values[name] for name in FORMS if values.get(name) is not None}
    if not asked and not offer.tools:
        return None, []
    read: ReadRule | None = config.part(ANSWER_RULES)
    if read is not None:
        return read(asked, offer, config, sampling, combines=combines)
    for name, value in asked.items():
        if value != {"type": "text"}:
            raise BadRequest(f"{name} asks for structured output, {WITHOUT}", param=name)
    if offer.tools and offer.required:
        raise BadRequest(f"tool_choice requires a call, which takes structured output, {WITHOUT}", param="tool_choice")
    if offer.tools and offer.strict:
        raise BadRequest(f"a strict tool asks for structured output, {WITHOUT}", param="tools")
    return None, []


def read_tools(tools: Any, choice: Any) -> tuple[list[Json], str | Json]:
    """Returns the tools that are left after tool_choice, in OpenAI's nested form, and the choice itself.

    Args:
        tools: The value of the field `tools`.
        choice: The value of `tool_choice`: "none" leaves no tools, a named function that one, allowed_tools those it
            lists.

    Raises:
        BadRequest: One of the two is not well-formed, or they do not fit.
    """
    if isinstance(choice, dict) and choice.get("type") == "allowed_tools":
        return _allowed(tools, choice)
    if not isinstance(tools, list | None):
        raise BadRequest("Tools are not an array", param="tools")
    found = [_tool(tool, f"tools[{i}]") for i, tool in enumerate(tools or ())]
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
    """Reads OpenAI's {"type": "allowed_tools", "allowed_tools": {"mode", "tools"}}, or (Responses) mode and tools in
    it."""
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


def _tool(tool: Any, param: str) -> Json:
    """Returns one tool in nested form; the flat form of the Responses API is accepted too."""
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
    return {**(tool if "function" in tool else {}), "type": "function", "function": function}


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
