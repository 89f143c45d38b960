"""Request fields about single tokens: which may be generated, which are reported, when a repetition ends a text.

`sampling` reads them with the others; the engine checks ids against its vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...errors import BadRequest
from ...types import Json
from ..fields import UINT32_MAX, Field, whole
from ..schemas import TOKENS

MAX_BIAS = 100
MAX_DIGITS = 9
MAX_BAD_WORDS, MAX_BAD_WORD = 256, 256
MAX_LOGPROB_IDS = 128
MAX_PATTERN = 512
MAX_BUDGET = 2147483647


def token_ids(values: list[Any], param: str) -> list[int]:
    """values as token ids; the engine checks them against its vocabulary. Raises BadRequest.

    Whole numbers become integers in place: a copy of 100,000 ids takes time.
    """
    for position, value in enumerate(values):
        if type(value) is float:
            value = values[position] = whole(value)
        if type(value) is not int or not 0 <= value <= UINT32_MAX:
            raise BadRequest(f"{param}[{position}] is not a token id", param=param)
    return values


def _logit_bias(value: Json) -> tuple[tuple[int, float], ...]:
    for name, bias in value.items():
        if not (name.isascii() and name.isdecimal() and len(name) <= MAX_DIGITS):
            raise BadRequest(f"logit_bias: {name[:40]!r} is not a token id", param="logit_bias")
        if isinstance(bias, bool) or not isinstance(bias, (int, float)) or not -MAX_BIAS <= bias <= MAX_BIAS:
            raise BadRequest(f"logit_bias[{name}] is not a number in [-{MAX_BIAS}, {MAX_BIAS}]", param="logit_bias")
    return tuple((int(name), float(bias)) for name, bias in value.items())


def _allowed(value: list[Any]) -> tuple[int, ...]:
    if not value:
        raise BadRequest("allowed_token_ids must not be empty", param="allowed_token_ids")
    return tuple(token_ids(value, "allowed_token_ids"))


def _bad_words(value: list[Any]) -> tuple[str, ...]:
    if len(value) > MAX_BAD_WORDS:
        raise BadRequest(f"bad_words must have no more than {MAX_BAD_WORDS} strings", param="bad_words")
    for word in value:
        if not isinstance(word, str) or not 0 < len(word) <= MAX_BAD_WORD:
            raise BadRequest(f"a bad word is a string of 1 to {MAX_BAD_WORD} characters", param="bad_words")
    return tuple(value)


def few_ids(name: str, most: int) -> Callable[[list[Any]], tuple[int, ...]]:
    """Returns the reader of a field with a limited number of token ids."""

    def read(value: list[Any]) -> tuple[int, ...]:
        if len(value) > most:
            raise BadRequest(f"{name} must have no more than {most} ids", param=name)
        return tuple(token_ids(value, name))

    return read


def _early_stopping(value: Any) -> bool | str:
    if value not in (True, False, "never") or (isinstance(value, (int, float)) and not isinstance(value, bool)):
        raise BadRequest('early_stopping must be true, false or "never"', param="early_stopping")
    return bool(value) if value != "never" else "never"


def _repetition(value: Json) -> tuple[int, int, int] | None:
    """vLLM's RepetitionDetectionParams; max_pattern_size 0 is off."""
    param = "repetition_detection"
    unknown = sorted(set(value) - set(_REPETITION))
    if unknown:
        raise BadRequest(f"{param} has {', '.join(_REPETITION)}, not {unknown[0][:40]!r}", param=param)
    longest, shortest, times = (0 if value.get(name) is None else whole(value[name]) for name in _REPETITION)
    if any(type(number) is not int or number < 0 for number in (longest, shortest, times)):
        raise BadRequest(f"the members of {param} are not unsigned integers", param=param)
    if not longest and not shortest:
        return None
    if shortest > longest or longest > MAX_PATTERN:
        raise BadRequest(f"{param}: min_pattern_size <= max_pattern_size <= {MAX_PATTERN} must hold", param=param)
    if not 2 <= times <= UINT32_MAX >> 1:
        raise BadRequest(f"{param}.min_count must be at least 2", param=param)
    return shortest or 1, longest, times


_REPETITION = ("max_pattern_size", "min_pattern_size", "min_count")
_PAGED = "; PAGED only, else a Warning header"

TOKEN_FIELDS = (
    Field("repetition_detection", "object",
        "vLLM's: end an output that repeats itself; an object of max_pattern_size, min_pattern_size and "
        "min_count", read=_repetition,
        schema={"properties": {name: {"type": "integer", "minimum": 0} for name in _REPETITION},
            "additionalProperties": False}),
    Field("logit_bias", "object",
        f"object from token ids to the number added to their logits, -{MAX_BIAS} to {MAX_BIAS}{_PAGED}",
        needs="logit_edits", read=_logit_bias, schema={"propertyNames": {"pattern": f"^[0-9]{{1,{MAX_DIGITS}}}$"},
            "additionalProperties": {"type": "number", "minimum": -MAX_BIAS, "maximum": MAX_BIAS}}),
    Field("allowed_token_ids", "array", f"vLLM's: token ids to choose from{_PAGED}", needs="logit_edits", read=_allowed,
        schema=TOKENS | {"minItems": 1}),
    Field("bad_words", "array", f"vLLM's: words that are not generated{_PAGED}", needs="logit_edits", read=_bad_words,
        schema={"items": {"type": "string", "minLength": 1, "maxLength": MAX_BAD_WORD}, "maxItems": MAX_BAD_WORDS}),
    Field("logprob_token_ids", "array",
        f"vLLM's: report the log probabilities of these token ids, instead of the likeliest{_PAGED}",
        needs="alternatives", read=few_ids("logprob_token_ids", MAX_LOGPROB_IDS),
        schema=TOKENS | {"maxItems": MAX_LOGPROB_IDS}),
    Field("early_stopping", "any", f"when a beam search with enough finished beams ends: true, false or never{_PAGED}",
        needs="beam_control", read=_early_stopping, schema={"enum": [True, False, "never"]}),
    Field("thinking_token_budget", "int",
        f"vLLM's: most tokens of reasoning, after which its end is forced; -1: no limit{_PAGED}",
        needs="logit_edits", low=-1, high=MAX_BUDGET),
)  # fmt: skip
