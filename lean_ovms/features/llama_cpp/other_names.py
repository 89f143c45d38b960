"""Translates fields that llama.cpp's clients send to OpenAI's chat and completions.

https://github.com/ggml-org/llama.cpp/blob/master/tools/server/README.md. If a body has a field under both names,
OpenAI's name counts.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from ...api.fields import UINT32_MAX, Field, FieldSet, read
from ...api.generation.common_fields import ReadableBody, overruled
from ...api.generation.sampling import SAMPLING
from ...types import Json

FORMATS = ("auto", "deepseek", "none")
FIELDS = FieldSet((
    Field("n_predict", "int",
        "(llama.cpp) another name of max_tokens; -1 for no limit; 0 generates one token, so that the prompt gets into "
        "the prefix cache",
        low=-1, high=UINT32_MAX),
    replace(SAMPLING.named("repetition_penalty"), name="repeat_penalty", help=
        "(llama.cpp) another name of repetition_penalty"),
    Field("n_cmpl", "uint", "(llama.cpp) another name of n", low=1),
    replace(SAMPLING.named("thinking_token_budget"), name="reasoning_budget_tokens", help=
        "(llama.cpp) another name of thinking_token_budget"),
    replace(SAMPLING.named("thinking_token_budget"), name="thinking_budget_tokens", help=
        "(llama.cpp) older name of reasoning_budget_tokens"),
    Field("reasoning_format", "string", "(llama.cpp) none leaves the reasoning in the content, with its tags",
        default="auto", choices=FORMATS, outside=f"reasoning_format must be one of: {', '.join(FORMATS)}"),
    Field("parse_tool_calls", "bool", "(llama.cpp) false leaves tool calls in the content", default=True),
))  # fmt: skip
LIMITS = ("max_completion_tokens", "max_tokens")
RENAMED = (
    ("repetition_penalty", "repeat_penalty"),
    ("n", "n_cmpl"),
    ("thinking_token_budget", "reasoning_budget_tokens"),
    ("thinking_token_budget", "thinking_budget_tokens"),
)
PRECEDENCE = (*((limit, "n_predict") for limit in LIMITS), *RENAMED)
"""Two names of one setting each; the first has precedence."""


def rewrite(given: ReadableBody, names: Collection[str]) -> ReadableBody:
    """Renames llama.cpp's fields in a body to those of OpenAI's API. Raises BadRequest for a wrong value."""
    values = read(FIELDS, given.body)
    body: Json = {name: value for name, value in given.body.items() if name not in FIELDS.places}
    most = values["n_predict"]
    sent_as: list[tuple[str, str]] = []
    limited = any(body.get(name) is not None for name in LIMITS if name in names)
    if most is not None and most >= 0 and not limited:
        body["max_tokens"] = max(1, most)
        sent_as.append(("max_tokens", "n_predict"))
    for name, theirs in RENAMED:
        if values[theirs] is not None and body.get(name) is None:
            body[name] = values[theirs]
            sent_as.append((name, theirs))
    return replace(
        given,
        body=body,
        unlimited=most == -1,
        sent_as=(*given.sent_as, *sent_as),
        parse_reasoning=values["reasoning_format"] != "none",
        parse_calls=values["parse_tool_calls"],
        notices=(*given.notices, *overruled({**given.body, **values}, PRECEDENCE)),
    )
