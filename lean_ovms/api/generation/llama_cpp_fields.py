"""Fields that clients of llama.cpp's server send to OpenAI's endpoints.

https://github.com/ggml-org/llama.cpp/blob/master/tools/server/README.md. Some are other names of fields: that one wins.
"""

from __future__ import annotations

from dataclasses import replace

from ...errors import BadRequest
from ...types import Json, OutputParams
from ..fields import UINT32_MAX, Field
from .sampling import SAMPLING

NAMES = {"n_predict": "max_tokens", "repeat_penalty": "repetition_penalty"}
FORMATS = ("auto", "deepseek", "none")


def _format(value: str) -> str:
    if value not in FORMATS:
        raise BadRequest(f"reasoning_format must be one of: {', '.join(FORMATS)}", param="reasoning_format")
    return value


SAMPLING_NAMES = (
    Field(
        name="n_predict",
        kind="int",
        low=-1,
        high=UINT32_MAX,
        help="llama.cpp's name of max_tokens; -1: no limit; 0: one token, and the prompt is in the prefix cache",
    ),
    replace(
        SAMPLING[SAMPLING.places["repetition_penalty"]],
        name="repeat_penalty",
        help="llama.cpp's name of repetition_penalty",
    ),
)
PARSING = (
    Field(
        name="reasoning_format",
        kind="string",
        help="llama.cpp's: none: reasoning stays in the content, with its tags",
        default="auto",
        read=_format,
        schema={"enum": list(FORMATS)},
    ),
    Field(name="parse_tool_calls", kind="bool", help="llama.cpp's: false: calls stay in the content", default=True),
)


def take_names(values: Json) -> None:
    """Write the values of SAMPLING_NAMES under the names that are read."""
    for name, ours in NAMES.items():
        value = values[name]
        if value is None or values[ours] is not None:
            continue
        if name == "n_predict":
            value = None if value < 0 else max(1, value)
        values[ours] = value


def parsed(output: OutputParams, values: Json) -> OutputParams:
    """The output as the values of PARSING have it, of an endpoint that may have none of them."""
    reasoning, calls = values.get("reasoning_format") != "none", values.get("parse_tool_calls") is not False
    return output if reasoning and calls else replace(output, parse_reasoning=reasoning, parse_calls=calls)
