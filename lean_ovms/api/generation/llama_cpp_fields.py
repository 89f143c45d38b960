"""Fields that clients of llama.cpp's server send to OpenAI's endpoints.

https://github.com/ggml-org/llama.cpp/blob/master/tools/server/README.md. Some are other names of fields: that one wins.
"""

from __future__ import annotations

from dataclasses import replace

from ...types import Json, OutputParams
from ..fields import UINT32_MAX, Field, Values
from .sampling import PARSED, SAMPLING

FORMATS = ("auto", "deepseek", "none")


SAMPLING_NAMES = (
    Field("n_predict", "int",
        "llama.cpp's name of max_tokens; -1: no limit; 0: one token, so that the prompt gets into the prefix cache",
        low=-1, high=UINT32_MAX),
    replace(SAMPLING.named("repetition_penalty"), name="repeat_penalty", help="llama.cpp's name of repetition_penalty"),
)  # fmt: skip
PARSING = (
    Field("reasoning_format", "string", "llama.cpp's; none: reasoning stays in the content, with its tags",
        default="auto", choices=FORMATS, outside=f"reasoning_format must be one of: {', '.join(FORMATS)}"),
    Field("parse_tool_calls", "bool", "llama.cpp's; false: tool calls stay in the content", default=True),
)  # fmt: skip


def sampling_names(values: Values) -> Json:
    """The values of SAMPLING_NAMES by the names that they stand for, where those are absent."""
    most, penalty, found = values["n_predict"], values["repeat_penalty"], {}
    if most is not None and values["max_tokens"] is None:
        found["max_tokens"] = None if most < 0 else max(1, most)
    if penalty is not None and values["repetition_penalty"] is None:
        found["repetition_penalty"] = penalty
    return found


def parsing(values: Values) -> OutputParams:
    """What is parsed out of the text."""
    reasoning, calls = values["reasoning_format"] != "none", values["parse_tool_calls"]
    return PARSED if reasoning and calls else replace(PARSED, parse_reasoning=reasoning, parse_calls=calls)
