"""The fields of llama.cpp's own completion endpoints, and their translation to those of OpenAI's completions.

https://github.com/ggml-org/llama.cpp/blob/master/tools/server/README.md. Defaults of sampling are the model's, as in
all APIs of this server, and not llama.cpp's.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ...api.fields import UINT32_MAX, Field, FieldSet, Values, read, require, whole
from ...api.generation.common_fields import KEEP_ALIVE, MODEL, RESPONSE_FORMAT, STREAM, STRUCTURED, TIMINGS
from ...api.generation.sampling import MAX_DIGITS, SAMPLING, GenerationFields
from ...api.schemas import STRING, any_of, object_of
from ...errors import BadRequest
from ...types import Json
from ..completions.prompt_pieces import SEVERAL
from ..sampler_chain import fields as sampler_chain

MAX_EXTRA = 256
"""Most pieces of input_extra."""
SAME = (
    *("temperature", "top_k", "top_p", "min_p", "presence_penalty", "frequency_penalty", "seed", "stop"),
    *("grammar", "json_schema", "id_slot", "lora"),
)
MAX_ID = 10**MAX_DIGITS - 1
MAX_BIASED, MAX_WORD = 1024, 256
"""Most entries of logit_bias, and characters of a text in it."""
PRECEDENCE = (("n_predict", "max_tokens"), ("n_cmpl", "n"))
"""Two names of one setting; the first has precedence."""
WITHOUT_EFFECT = (
    *("cache_prompt", "n_keep", "n_discard", "n_indent"),
    *("t_max_prompt_ms", "sse_ping_interval"),
)


_WORD = {"type": "string", "minLength": 1, "maxLength": MAX_WORD}
_PAIR = [
    any_of({"type": "integer", "minimum": 0, "maximum": MAX_ID}, _WORD),
    any_of({"type": "number"}, {"const": False}),
]
BIAS = any_of(
    {"type": "object", "additionalProperties": _PAIR[1], "maxProperties": MAX_BIASED,
     "propertyNames": any_of({"pattern": f"^[0-9]{{1,{MAX_DIGITS}}}$"}, _WORD | {"pattern": "[^0-9]"})},
    {"type": "array", "maxItems": MAX_BIASED,
     "items": {"type": "array", "prefixItems": _PAIR, "minItems": 2, "maxItems": 2}},
)  # fmt: skip


def _extra(value: list[Any]) -> list[tuple[str, str]]:
    """Reads the names and texts of the files. Raises BadRequest."""
    if len(value) > MAX_EXTRA:
        raise BadRequest(f"input_extra has {len(value)} entries; the limit is {MAX_EXTRA}", param="input_extra")
    for place, item in enumerate(value):
        if not isinstance(item, dict) or not isinstance(item.get("text"), str):
            raise BadRequest("each entry of input_extra must be an object with a text", param=f"input_extra[{place}]")
        if not isinstance(item.get("filename", ""), str):
            raise BadRequest("filename must be a string", param=f"input_extra[{place}]")
    return [(item.get("filename", "tmp"), item["text"]) for item in value]


def _bias(value: Any) -> list[tuple[int | str, float]]:
    """Reads pairs of a token id, or a text for all its tokens, and a bias; False bans a token. Raises BadRequest."""
    wrong = BadRequest(
        "logit_bias must contain pairs of a token id or string, and a number or false", param="logit_bias"
    )
    if isinstance(value, dict):
        value = [[_key(key), bias] for key, bias in value.items()]
    if not isinstance(value, list) or len(value) > MAX_BIASED:
        raise wrong
    if not all(isinstance(pair, list) and len(pair) == 2 for pair in value):
        raise wrong
    value = [[whole(token), bias] for token, bias in value]
    if not all(_is_token(token) and (bias is False or type(bias) in (int, float)) for token, bias in value):
        raise wrong
    return [(token, -100.0 if bias is False else float(max(-100, min(bias, 100)))) for token, bias in value]


def _key(text: str) -> int | str:
    """Returns the name of a member of logit_bias, as an integer if it is a token id."""
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= MAX_DIGITS else text


def _is_token(value: Any) -> bool:
    return (type(value) is int and 0 <= value <= MAX_ID) or (isinstance(value, str) and 0 < len(value) <= MAX_WORD)


def _strings(value: list[Any]) -> list[str]:
    if not all(isinstance(item, str) for item in value):
        raise BadRequest("response_fields must be an array of strings", param="response_fields")
    return value


def _like(theirs: str, name: str = "") -> Field:
    """Declares a field of completions under llama.cpp's name. It is only checked, since the translated body is read."""
    field: Field = next(field for field in (*SAMPLING, *STRUCTURED) if field.name == theirs)
    return replace(field, name=name or theirs, read=None)


OPTIONS = (
    MODEL,
    STREAM,
    Field("n_predict", "int",
        "maximum number of generated tokens; -1 for no limit; 0 only computes the prompt, so that it gets "
        "into the prefix cache", low=-1, high=UINT32_MAX),
    Field("max_tokens", "int", "another name of n_predict, which has precedence", low=-1, high=UINT32_MAX),
    Field("n_cmpl", "uint", "number of answers to each prompt", low=1),
    Field("n", "uint", "another name of n_cmpl, which has precedence", low=1),
    Field("temperature", "number", "sampling temperature; 0 or less always takes the likeliest token", high=2),
    Field("top_k", "int", "number of likeliest tokens to sample from; 0 or less for all", high=UINT32_MAX),
    _like("top_p"),
    _like("min_p"),
    _like("repetition_penalty", "repeat_penalty"),
    _like("presence_penalty"),
    _like("frequency_penalty"),
    _like("seed"),
    _like("stop"),
    Field("logit_bias", "any",
        "pairs of a token, by its id or text, and the number added to its logit, or false for never; "
        "or an object of such pairs", read=_bias, schema=BIAS),
    *sampler_chain.FIELDS,
    _like("ignore_eos"),
    _like("id_slot"),
    _like("lora"),
    _like("grammar"),
    replace(_like("json_schema"), kind="object", schema=None),
    Field("t_max_predict_ms", "int",
        "without stream, end this many milliseconds after the first token, once the text has a line "
        "break"),
    Field("n_probs", "int",
        "return completion_probabilities with this many of the likeliest tokens, at most --max_logprobs; "
        "only with the generated tokens unless the pipeline is PAGED", low=0, high=UINT32_MAX, default=0),
    Field("post_sampling_probs", "bool",
        "return probabilities instead of logarithms for n_probs; they are the model's, before sampling parameters are "
        "applied", default=False),
    Field("return_tokens", "bool", "return the ids of the generated tokens", default=False),
    Field("response_fields", "array",
        'without stream, return only these members of the response, such as "timings/prompt_n"',
        read=_strings, schema={"items": STRING}),
    *TIMINGS[1:],
    KEEP_ALIVE,
    *(Field(name, "any", "accepted without effect") for name in WITHOUT_EFFECT),
)  # fmt: skip
COMPLETION = FieldSet((
    Field("prompt", "any", "a string, an array of token ids and strings, or an array of several prompts", required=True,
        schema=SEVERAL),
    *OPTIONS,
))  # fmt: skip
INFILL = FieldSet((
    Field("input_prefix", "string", "text before the gap to fill", required=True),
    Field("input_suffix", "string", "text after the gap to fill", required=True),
    Field("input_extra", "array", "other files, as objects with filename and text", read=_extra,
        schema={"maxItems": MAX_EXTRA, "items": object_of({"text": STRING}, filename=STRING)}),
    Field("prompt", "string", "further text before the gap to fill, after input_prefix", default=""),
    *OPTIONS,
))  # fmt: skip
AS_COMPLETION = GenerationFields((MODEL, STREAM, KEEP_ALIVE, *TIMINGS, RESPONSE_FORMAT, *STRUCTURED, *SAMPLING))
"""The fields of `translated`."""


def values_of(fields: FieldSet, body: Json) -> Values:
    """Reads the value of every field. Raises BadRequest."""
    values: Values = read(fields, body)
    require(fields, values, "is required")
    return values


def sent_as(values: Values) -> list[tuple[str, str]]:
    """Returns pairs of a field of completions and llama.cpp's name of it in this request, for errors."""
    named = [("max_tokens", "n_predict"), ("n", "n_cmpl")]
    return [(name, theirs) for name, theirs in named if values[theirs] is not None]


def translated(values: Values, given: Json) -> Json:
    """Translates a request to a body of OpenAI's completions.

    Args:
        values: The values of the fields.
        given: The body, from which the fields of samplers are taken over.
    """
    body = {name: values[name] for name in (*SAME, "model", "stream", "ignore_eos", "keep_alive", "return_progress")}
    body["repetition_penalty"] = values["repeat_penalty"]
    body["n"] = values["n"] if values["n_cmpl"] is None else values["n_cmpl"]
    if (temperature := values["temperature"]) is not None:
        body["temperature"] = max(temperature, 0)
    if (top_k := values["top_k"]) is not None and top_k <= 0:
        body["top_k"] = -1
    if values["seed"] == UINT32_MAX:  # -1 as llama.cpp writes it
        body["seed"] = -1
    most = values["max_tokens"] if values["n_predict"] is None else values["n_predict"]
    body["max_tokens"] = most
    if most is not None and most <= 0:
        body["max_tokens"] = None if most else 1  # the engine generates at least one token, which is not shown
    if (bias := values["logit_bias"]) is not None:
        body["logit_bias"] = {str(token): number for token, number in bias if isinstance(token, int)}
    body["include_stop_str_in_output"] = False
    body |= {name: given[name] for name in sampler_chain.FIELDS.places if name in given}
    return {name: value for name, value in body.items() if value is not None}
