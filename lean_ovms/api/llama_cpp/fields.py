"""The fields of llama.cpp's own completion endpoints, in the words of OpenAI's completions.

https://github.com/ggml-org/llama.cpp/blob/master/tools/server/README.md. Defaults of sampling are the model's, as
everywhere here, and not llama.cpp's.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ...errors import BadRequest
from ...types import Json
from ..fields import UINT32_MAX, Field, FieldSet, read
from ..generation.common_fields import KEEP_ALIVE, LOGPROBS, MODEL, STREAM, TIMINGS, TOP_LOGPROBS
from ..generation.request import RequestSchema
from ..generation.sampling import SAMPLING
from ..generation.structured_output import RESPONSE_FORMAT, STRUCTURED
from ..generation.token_fields import MAX_DIGITS
from ..schemas import STRING, TOKENS, any_of, object_of

MAX_EXTRA = 256
"""Most pieces of input_extra."""
SAME = (
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "seed",
    "stop",
    "logit_bias",
    "grammar",
    "json_schema",
)
MAX_ID = 10**MAX_DIGITS - 1
MAX_BIASED = 1024
"""Most entries of logit_bias."""
RENAMED = {"n_predict": "max_tokens", "repeat_penalty": "repetition_penalty"}
WITHOUT_EFFECT = (
    *("cache_prompt", "id_slot", "n_keep", "n_discard", "n_indent", "samplers", "repeat_last_n", "typical_p"),
    *("t_max_prompt_ms", "min_keep", "sse_ping_interval"),
)


_PAIR = [
    {"type": "integer", "minimum": 0, "maximum": MAX_ID},
    any_of({"type": "number"}, {"const": False}),
]
BIAS = any_of(
    {"type": "object", "additionalProperties": {"type": "number", "minimum": -100, "maximum": 100},
     "propertyNames": {"pattern": f"^[0-9]{{1,{MAX_DIGITS}}}$"}},
    {"type": "array", "maxItems": MAX_BIASED,
     "items": {"type": "array", "prefixItems": _PAIR, "minItems": 2, "maxItems": 2}},
)  # fmt: skip


def _extra(value: list[Any]) -> list[tuple[str, str]]:
    """File names and texts."""
    if len(value) > MAX_EXTRA:
        raise BadRequest(f"input_extra has {len(value)} entries; the limit is {MAX_EXTRA}", param="input_extra")
    for place, item in enumerate(value):
        if not isinstance(item, dict) or not isinstance(item.get("text"), str):
            raise BadRequest("an entry must be an object with a text", param=f"input_extra[{place}]")
        if not isinstance(item.get("filename", ""), str):
            raise BadRequest("filename must be a string", param=f"input_extra[{place}]")
    return [(item.get("filename", "tmp"), item["text"]) for item in value]


def _bias(value: Any) -> Any:
    """OpenAI's object of a list of pairs; False, or a bias of false, bans a token."""
    if not isinstance(value, list):
        return value
    wrong = BadRequest("logit_bias must be pairs of a token id and a number or false", param="logit_bias")
    if len(value) > MAX_BIASED or not all(isinstance(pair, list) and len(pair) == 2 for pair in value):
        raise wrong
    if not all(
        type(token) is int and 0 <= token <= MAX_ID and (bias is False or type(bias) in (int, float))
        for token, bias in value
    ):
        raise wrong
    return {str(token): -100 if bias is False else max(-100, min(bias, 100)) for token, bias in value}


def _strings(value: list[Any]) -> list[str]:
    if not all(isinstance(item, str) for item in value):
        raise BadRequest("response_fields must be strings", param="response_fields")
    return value


def _like(theirs: str, name: str = "") -> Field:
    """A field of completions; it is only checked here, and read with the translated body."""
    field: Field = next(field for field in (*SAMPLING, *STRUCTURED) if field.name == theirs)
    return replace(field, name=name or theirs, read=None)


OPTIONS = (
    MODEL,
    STREAM,
    Field(name="n_predict", kind="int", low=-1, high=UINT32_MAX, help="maximum number of generated tokens; -1: no "
          "limit; 0: the prompt is only computed, and then in the prefix cache"),
    Field(name="temperature", kind="number", high=2, help="0 or less: greedy"),
    Field(name="top_k", kind="int", high=UINT32_MAX, help="0 or less: off"),
    _like("top_p"),
    _like("min_p"),
    _like("repetition_penalty", "repeat_penalty"),
    _like("presence_penalty"),
    _like("frequency_penalty"),
    Field(name="seed", kind="int", high=UINT32_MAX, help="-1: random"),
    _like("stop"),
    Field(name="logit_bias", kind="any", help="pairs of a token id and what is added to its logit, or false: never; "
          "or OpenAI's object", read=_bias, schema=BIAS),
    _like("ignore_eos"),
    _like("grammar"),
    replace(_like("json_schema"), kind="object", schema=None),
    Field(name="t_max_predict_ms", kind="int", help="without stream: no longer than this after the first token, if the "
          "text has a line break"),
    Field(name="return_tokens", kind="bool", help="the ids of the generated tokens", default=False),
    Field(name="response_fields", kind="array", help='without stream: only these, such as "timings/prompt_n"',
          read=_strings, schema={"items": STRING}),
    *TIMINGS[1:],
    KEEP_ALIVE,
    *(Field(name=name, kind="any", help="no effect") for name in WITHOUT_EFFECT),
)  # fmt: skip
COMPLETION = FieldSet((
    Field(name="prompt", kind="any", required=True, help="a string or token ids",
          schema=any_of({"type": "string", "minLength": 1}, TOKENS | {"minItems": 1})),
    *OPTIONS,
))  # fmt: skip
INFILL = FieldSet((
    Field(name="input_prefix", kind="string", required=True, help="the text before the place"),
    Field(name="input_suffix", kind="string", required=True, help="the text behind it"),
    Field(name="input_extra", kind="array", help="other files: filename, text", read=_extra,
          schema={"maxItems": MAX_EXTRA, "items": object_of({"text": STRING}, filename=STRING)}),
    Field(name="prompt", kind="string", help="more of the text before the place", default=""),
    *OPTIONS,
))  # fmt: skip
SCHEMA = RequestSchema(
    fields=FieldSet(
        (MODEL, STREAM, KEEP_ALIVE, LOGPROBS, TOP_LOGPROBS, *TIMINGS, RESPONSE_FORMAT, *STRUCTURED, *SAMPLING)
    ),
    max_tokens="n_predict",
    parse_output=False,
)


def values_of(fields: FieldSet, body: Json) -> Json:
    """Every field's value. Raises BadRequest."""
    values = read(fields, body)
    for field in fields:
        if field.required and values[field.name] is None:
            raise BadRequest(f"{field.name} is required", param=field.name)
    return values


def translated(values: Json) -> Json:
    """The body of the same request for SCHEMA."""
    body = {name: values[name] for name in (*SAME, "model", "stream", "ignore_eos", "keep_alive", "return_progress")}
    body |= {ours: values[name] for name, ours in RENAMED.items()}
    if (temperature := values["temperature"]) is not None:
        body["temperature"] = max(temperature, 0)
    if (top_k := values["top_k"]) is not None and top_k <= 0:
        body["top_k"] = -1
    if (seed := values["seed"]) is not None and (seed < 0 or seed == UINT32_MAX):
        del body["seed"]
    if (most := values["n_predict"]) is not None and most <= 0:
        body["max_tokens"] = None if most else 1  # the engine always generates; this token is not shown
    body["include_stop_str_in_output"] = False
    body["timings"] = True
    return {name: value for name, value in body.items() if value is not None}
