"""The fields `tools`, `tool_choice` and `parallel_tool_calls`: which tools the model is offered, and what it must call.

Together with the fields that constrain the answer's form (FORMS) they become one constraint, which the feature for
structured output builds. The rules and error texts are OVMS's and OpenAI's; messages.py names the sources.
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
    """The tools that tool_choice leaves, and the rules for calling them."""

    tools: list[Json]
    """The tools that the model sees."""
    required: bool = False
    """Whether one of them must be called."""
    parallel: bool | None = None
    """Whether the answer may have several calls; None if the client does not say."""
    strict: bool = False
    """Whether calls must match the tool's schema even where the model may decide not to call it, as OpenAI promises."""


NO_TOOLS = ToolOffer([])


def read_offer(tools: Any, choice: Any, parallel: bool | None) -> ToolOffer:
    """Reads the values of `tools`, `tool_choice` and `parallel_tool_calls`. Raises BadRequest."""
    if tools is None and choice is None:
        return NO_TOOLS
    tools, choice = read_tools(tools, choice)
    several = False if isinstance(choice, dict) else parallel  # a named function is called once, as OpenAI does
    strict = any(tool["function"].get("strict") is True for tool in tools)
    return ToolOffer(tools, choice != "auto", several, strict)


class ReadRule(Protocol):
    """Builds the constraint on the answer of a request."""

    def __call__(
        self, asked: Json, offer: ToolOffer, config: Config, sampling: SamplingParams, *, combines: bool
    ) -> tuple[OutputConstraint | None, list[str]]:
        """Returns the constraint on the answer, None if any text is allowed, and warnings about what is not enforced.

        Args:
            asked: The values of the fields in FORMS that the client sets, by name.
            offer: The tools that may be called, and whether one must be.
            config: The model's configuration.
            sampling: The parameters of the request.
            combines: Whether the engine can combine grammars with beam search and min_tokens.

        Raises:
            BadRequest: A form is invalid or too large, or is incompatible with another form or a required call.
        """


WITHOUT = "which is off on this server"


def answer_rule(
    values: Values, offer: ToolOffer, config: Config, sampling: SamplingParams, *, combines: bool
) -> tuple[OutputConstraint | None, list[str]]:
    """Returns the constraint on the answer, None if any text is allowed, and warnings about what is not enforced.

    The feature for structured output builds it. A server without this feature refuses requests that need a constraint.

    Args:
        values: The values of the body.
        offer: The tools that may be called, and whether one must be.
        config: The model's configuration.
        sampling: The parameters of the request.
        combines: Whether the engine can combine grammars with beam search and min_tokens.

    Raises:
        BadRequest: The constraint is invalid, or the server cannot enforce it.
    """
    asked = {name: values[name] for name in FORMS if values.get(name) is not None}
    if not asked and not offer.tools:
        return None, []
    read: ReadRule | None = config.part(ANSWER_RULES)
    if read is not None:
        return read(asked, offer, config, sampling, combines=combines)
    for name, value in asked.items():
        if value != {"type": "text"}:
            raise BadRequest(f"{name} needs structured output, {WITHOUT}", param=name)
    if offer.tools and offer.required:
        raise BadRequest(f"a tool_choice that requires a call needs structured output, {WITHOUT}", param="tool_choice")
    if offer.tools and offer.strict:
        raise BadRequest(f"a strict tool needs structured output, {WITHOUT}", param="tools")
    return None, []


def read_tools(tools: Any, choice: Any) -> tuple[list[Json], str | Json]:
    """Returns the tools that tool_choice leaves, in OpenAI's nested form, and the choice itself.

    "none" leaves no tools, a named function that one, and allowed_tools those that it lists. Raises BadRequest.
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
        raise BadRequest(f"tool_choice names {name!r}, which is not in tools", param="tool_choice")
    return kept, {"type": "function", "function": {"name": name}}


def _allowed(tools: Any, choice: Json) -> tuple[list[Json], str | Json]:
    """Returns the tools and the choice for a tool_choice of the type "allowed_tools".

    OpenAI nests "mode" and "tools" under "allowed_tools" in chat; the Responses API has them at the top level.
    """
    inner = choice.get("allowed_tools", choice)
    mode, listed = (inner.get("mode"), inner.get("tools")) if isinstance(inner, dict) else (None, None)
    if mode not in ("auto", "required") or not isinstance(listed, list):
        raise BadRequest(
            "tool_choice of type allowed_tools needs a mode (auto or required) and tools", param="tool_choice"
        )
    names = {_named(tool) for tool in listed if isinstance(tool, dict)}
    found, _ = read_tools(tools, None)
    kept = [tool for tool in found if tool["function"]["name"] in names]
    if names - {tool["function"]["name"] for tool in kept} or not kept:
        raise BadRequest("tool_choice allows a tool that is not in tools", param="tool_choice")
    return kept, mode


def _tool(tool: Any, param: str) -> Json:
    """Returns one tool in OpenAI's nested form. The flat form of the Responses API is accepted too."""
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
