"""The fields of the response object that repeat its request (OpenAI's Response)."""

from __future__ import annotations

from typing import Any

from ....types import Json
from ...fields import Values
from ...generation.request import GenerationBody
from ...generation.tools import read_tools
from .agent_tools import AgentTools
from .fields import TEXT_FORMAT


def echo(values: Values, tools: AgentTools, generation: GenerationBody) -> Json:
    """The response object's fields that repeat the request, in the contract's order."""
    sampling = generation.sampling
    functions = [tool["function"] for tool in read_tools(tools.functions, None)[0]]
    plain = [function for function in functions if function["name"] not in tools.origins]
    fields: Json = {
        "parallel_tool_calls": values["parallel_tool_calls"],
        "store": values["store"],
        "temperature": sampling.temperature,
        "text": _text(values),
        "tool_choice": _tool_choice(values["tool_choice"]),
        "tools": [*({"type": "function", "strict": None, "parameters": None, **f} for f in plain), *tools.shown],
        "top_p": sampling.top_p,
    }
    if values["min_p"] is not None:
        fields["min_p"] = values["min_p"]
    conversation = values["conversation"]
    return fields | {
        "truncation": values["truncation"] or "disabled",
        "metadata": values["metadata"] or {},
        "max_output_tokens": sampling.max_tokens,
        "background": values["background"],
        "conversation": None if conversation is None else {"id": conversation},
        "instructions": values["instructions"],
        "max_tool_calls": values["max_tool_calls"],
        "previous_response_id": values["previous_response_id"],
        "prompt_cache_key": values["prompt_cache_key"],
        "prompt_cache_retention": values["prompt_cache_retention"],
        "reasoning": values["reasoning"] or {"effort": None, "summary": None},
        "safety_identifier": values["safety_identifier"],
        "service_tier": "default",
        "top_logprobs": generation.logprobs.top,
        "user": values["user"],
    }


def _text(values: Values) -> Json:
    """`text`, with response_format (of the other APIs) as its format."""
    text = values["text"] or {"format": TEXT_FORMAT}
    response_format = values["response_format"]
    if response_format is None:
        return text
    inner = response_format.get("json_schema")
    flat = {"type": "json_schema", **inner} if isinstance(inner, dict) and "schema" in inner else response_format
    return {**text, "format": flat}


def _tool_choice(tool_choice: Any) -> str | Json:
    """A validated tool_choice in OpenAI's form."""
    if isinstance(tool_choice, dict) and isinstance(tool_choice.get("function"), dict):
        return {"type": "function", "name": tool_choice["function"]["name"]}
    return "auto" if tool_choice is None else tool_choice
