"""What the response object repeats of its request (contract section 5.3, OpenAI's Response)."""

from __future__ import annotations

from typing import Any

from ....types import Json, SamplingParams
from ...generation.tools import read_tools
from .fields import TEXT_FORMAT


def echo(values: Json, sampling: SamplingParams) -> Json:
    """The response object's fields that repeat the request, in the contract's order."""
    offered, _ = read_tools(values["tools"], None)
    said: Json = {
        "parallel_tool_calls": values["parallel_tool_calls"],
        "store": values["store"],
        "temperature": sampling.temperature,
        "text": _echo_text(values),
        "tool_choice": _choice(values["tool_choice"]),
        "tools": [{"type": "function", "strict": None, "parameters": None, **t["function"]} for t in offered],
        "top_p": sampling.top_p,
    }
    if values["min_p"] is not None:
        said["min_p"] = values["min_p"]
    conversation = values["conversation"]
    return said | {
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
        "top_logprobs": values["top_logprobs"] or 0,
        "user": values["user"],
    }


def _echo_text(values: Json) -> Json:
    """`text`, with the response_format of other APIs in its form."""
    text = values["text"] or {"format": TEXT_FORMAT}
    form = values["response_format"]
    if form is None:
        return text
    inner = form.get("json_schema")
    flat = {"type": "json_schema", **inner} if isinstance(inner, dict) and "schema" in inner else form
    return {**text, "format": flat}


def _choice(given: Any) -> str | Json:
    """tool_choice as OpenAI writes it; it has been read."""
    if isinstance(given, dict) and isinstance(given.get("function"), dict):
        return {"type": "function", "name": given["function"]["name"]}
    return "auto" if given is None else given
