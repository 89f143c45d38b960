"""The fields of llama.cpp's samplers, which every endpoint that generates text takes.

https://github.com/ggml-org/llama.cpp/blob/master/tools/server/README.md. A request whose fields switch on a sampler
that is not among the usual ones, or that name an order, is sampled by llama.cpp's chain; any other request as always.
A model's generation_config.json, or --override_generation_config, may have defaults for all of them.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from functools import partial
from typing import Any

from ...api.fields import Field, FieldSet, Values, read
from ...api.generation.common_fields import NOT_WITH_BEAMS, ReadableBody
from ...api.generation.sampling import INT32_MAX
from ...api.schemas import STRING, any_of, array
from ...errors import BadRequest
from ...observability.logging import safe
from ...types import Json, SamplingParams

SAMPLERS = {
    "penalties": "e", "dry": "d", "top_n_sigma": "s", "top_k": "k", "typ_p": "y", "top_p": "p", "min_p": "m",
    "xtc": "x", "temperature": "t", "adaptive_p": "a",
}  # fmt: skip
"""llama.cpp's samplers in their usual order, with the letter of each."""
ORDER = tuple(name for name in SAMPLERS if name != "adaptive_p")
OTHER_NAMES = {"nucleus": "top_p", "temp": "temperature", "typ": "typ_p", "typical_p": "typ_p", "typical": "typ_p"}
BREAKERS = ("\n", ":", '"', "*")
"""The texts across which DRY finds no repetition, unless a request names others."""
DRY_BASE = 1.75
MAX_SAMPLERS, MAX_BREAKERS, MAX_BREAKER, MAX_NAME = 16, 32, 40, 40
"""The most samplers, the most sequence breakers, the most characters of one, and the characters that a warning shows of
an unknown sampler's name."""
MAX_ALLOWED_LENGTH = 256
MIROSTAT_IGNORES = ("top_k", "top_p", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty")
"""Fields of the core that have no effect with Mirostat, as in llama.cpp."""


def _samplers(value: Any) -> tuple[str, ...]:
    """Returns the names of samplers; unknown ones are kept, for a warning. Raises BadRequest."""
    if isinstance(value, str) and len(value) <= MAX_SAMPLERS:
        names = {letter: name for name, letter in SAMPLERS.items()}
        value = [names.get(letter, letter) for letter in value]
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value) or len(value) > MAX_SAMPLERS:
        raise BadRequest(
            f"samplers must be an array of at most {MAX_SAMPLERS} names of samplers, or a string of their letters",
            param="samplers",
        )
    return tuple(map(_sampler, value))


def _sampler(name: str) -> str:
    """Returns the usual name of a sampler, which may be written as top-k or topk, too."""
    lower = name.lower()
    spellings = (one for one in SAMPLERS if lower in (one, one.replace("_", "-"), one.replace("_", "")))
    return next(spellings, OTHER_NAMES.get(lower, name))


def _breakers(value: list[Any]) -> tuple[str, ...]:
    """Returns the sequence breakers that are not empty. Raises BadRequest."""
    param = "dry_sequence_breakers"
    if not value or len(value) > MAX_BREAKERS or not all(isinstance(text, str) for text in value):
        raise BadRequest(f"{param} must be an array of 1 to {MAX_BREAKERS} strings", param=param)
    if any(len(text) > MAX_BREAKER for text in value):
        raise BadRequest(f"{param} must contain strings of at most {MAX_BREAKER} characters", param=param)
    return tuple(text for text in value if text)


FIELDS = FieldSet((
    Field("samplers", "any",
        "(llama.cpp) names of the samplers in their order, or their letters; each sampler that is not named is off",
        read=_samplers, schema=any_of(STRING, array(STRING) | {"maxItems": MAX_SAMPLERS})),
    Field("min_keep", "int",
        "(llama.cpp) least number of tokens that top_p, min_p, typical_p and XTC leave", low=0, high=INT32_MAX,
        default=0),
    Field("repeat_last_n", "int",
        "(llama.cpp, Ollama) number of latest tokens, of the prompt and the output, that penalties count; 0 for no "
        "penalties; -1 for all", low=-1, high=INT32_MAX, default=-1),
    Field("typical_p", "number",
        "(llama.cpp, Ollama) probability mass of locally typical sampling; 1 for off", low=0, high=1, default=1.0),
    Field("top_n_sigma", "number",
        "(llama.cpp) keep logits within this many standard deviations of the highest; 0 or less for off",
        default=-1.0),
    Field("xtc_probability", "number",
        "(llama.cpp) chance that XTC removes the likeliest tokens; 0 for off", low=0, high=1, default=0.0),
    Field("xtc_threshold", "number",
        "(llama.cpp) least probability of the tokens of which XTC leaves the least likely; above 0.5 for off",
        low=0, high=1, default=0.1),
    Field("dry_multiplier", "number",
        "(llama.cpp) strength of the DRY penalty of repeated sequences; 0 for off", low=0, high=100, default=0.0),
    Field("dry_base", "number",
        f"(llama.cpp) base of the DRY penalty, whose exponent is the length of a sequence; below 1 means {DRY_BASE}",
        high=100, default=DRY_BASE, read=lambda base: base if base >= 1 else DRY_BASE),
    Field("dry_allowed_length", "int",
        "(llama.cpp) length from which the DRY penalty applies to sequences", low=0, high=MAX_ALLOWED_LENGTH,
        default=2),
    Field("dry_penalty_last_n", "int",
        "(llama.cpp) number of latest tokens in which DRY finds repetitions; 0 for off; -1 for all",
        low=-1, high=INT32_MAX, default=64),
    Field("dry_sequence_breakers", "array",
        f"(llama.cpp) up to {MAX_BREAKERS} texts across which DRY finds no repetition; by default line break, colon, "
        "quotation mark and asterisk", read=_breakers,
        schema={"items": STRING | {"maxLength": MAX_BREAKER}, "minItems": 1, "maxItems": MAX_BREAKERS}),
    Field("dynatemp_range", "number",
        "(llama.cpp) how far the temperature goes down and up with the entropy; 0 for off", low=0, high=100,
        default=0.0),
    Field("dynatemp_exponent", "number",
        "(llama.cpp) exponent of the entropy for dynatemp_range", low=0, high=100, default=1.0),
    Field("mirostat", "int",
        "(llama.cpp, Ollama) version of Mirostat, 1 or 2, which replaces all samplers but the temperature; 0 for off",
        low=0, high=2, default=0),
    Field("mirostat_tau", "number",
        "(llama.cpp, Ollama) surprise in bits that Mirostat aims at", low=0, high=1000, default=5.0),
    Field("mirostat_eta", "number",
        "(llama.cpp, Ollama) learning rate of Mirostat", low=0, high=100, default=0.1),
    Field("adaptive_target", "number",
        "(llama.cpp) probability that tokens are chosen near to, if samplers name adaptive_p; negative for off",
        high=1, default=-1.0),
    Field("adaptive_decay", "number",
        "(llama.cpp) decay of the mean probability of chosen tokens for adaptive_target", low=0, high=0.99,
        default=0.9),
))  # fmt: skip


def rewrite(given: ReadableBody, names: Collection[str]) -> ReadableBody:
    """Takes the fields out of a body, so that they adjust the sampling parameters. Raises BadRequest for a wrong value.

    An endpoint's own field of the same name stays in the body.
    """
    taken = FIELDS.names.difference(names)
    mine = {name: value for name, value in given.body.items() if name in taken and value is not None}
    values, rest = read(FIELDS, mine), {name: value for name, value in given.body.items() if name not in taken}
    notices = [
        f"samplers: {safe(name, MAX_NAME)} is not supported and was ignored"
        for name in dict.fromkeys(values["samplers"] or ())
        if name not in SAMPLERS
    ]
    if values["mirostat"]:
        unused = [name for name in MIROSTAT_IGNORES if rest.get(name) not in (None, *NOT_WITH_BEAMS[name])]
        notices += [f"{name} has no effect with mirostat" for name in unused]
    return replace(given, body=rest, notices=(*given.notices, *notices), adjust=partial(adjust, mine))


def settings_of(values: Values) -> Json:
    """Returns the settings of the samplers as llama.cpp names them, given the values of all fields."""
    order, breakers = values["samplers"], values["dry_sequence_breakers"]
    return {
        **{name: values[name] for name in FIELDS.places},
        "samplers": [name for name in (ORDER if order is None else order) if name in SAMPLERS],
        "dry_sequence_breakers": list(BREAKERS if breakers is None else breakers),
    }


def uses_dry(values: Values) -> bool:
    """Returns whether the values of the fields, or the settings, switch DRY on."""
    return bool(values["dry_multiplier"] and values["dry_penalty_last_n"])


def uses_xtc(values: Values) -> bool:
    """Returns whether the values of the fields, or the settings, switch XTC on."""
    return bool(values["xtc_probability"] > 0 and values["xtc_threshold"] <= 0.5)


def switched_on(values: Values, sampling: SamplingParams) -> list[str]:
    """Returns the fields that ask for another choice of tokens than the usual samplers make.

    Args:
        values: The values of all fields.
        sampling: The other parameters of the request.
    """
    on = {
        "samplers": values["samplers"] is not None,
        "min_keep": values["min_keep"] > 1,
        "repeat_last_n": values["repeat_last_n"] >= 0 and sampling.penalised,
        "typical_p": values["typical_p"] < 1,
        "top_n_sigma": values["top_n_sigma"] > 0,
        "xtc_probability": uses_xtc(values),
        "dry_multiplier": uses_dry(values),
        "dynatemp_range": values["dynatemp_range"] > 0,
        "mirostat": values["mirostat"] > 0,
    }
    return [name for name, applies in on.items() if applies]


def adjust(
    mine: Json, sampling: SamplingParams, capabilities: Collection[str], defaults: Json
) -> tuple[SamplingParams, list[str]]:
    """Returns the parameters with the settings of the samplers, and warnings about the fields of the request.

    Args:
        mine: The fields of the request, which have been checked.
        sampling: The other parameters of the request.
        capabilities: What the model's engine can do.
        defaults: The model's defaults for all fields; not for beam search, nor for engines without samplers.

    Raises:
        BadRequest: A field of the request is combined with beam search, or a default of the model is wrong.
    """
    values = _values(mine, defaults)
    notices = []
    if mine.get("adaptive_target", -1) >= 0 and "adaptive_p" not in (values["samplers"] or ()):
        notices.append("adaptive_target has no effect without adaptive_p in samplers")
    if values["repeat_last_n"] == 0:
        sampling = replace(sampling, repetition_penalty=1.0, presence_penalty=0.0, frequency_penalty=0.0)
    fields = switched_on(values, sampling)
    asked = [name for name in fields if name in mine]
    if asked and sampling.beams > 1:
        raise BadRequest(f"{asked[0]} cannot be combined with beam search", param=asked[0])
    if "logit_edits" not in capabilities:
        return sampling, notices + [f"{name} is not supported and was ignored" for name in sorted(asked)]
    if not fields or sampling.beams > 1:
        return sampling, notices
    return replace(sampling, sampler_chain=settings_of(values)), notices


def _values(mine: Json, defaults: Json) -> Values:
    """Returns the values of all fields, given those of a request and the model's defaults. Raises BadRequest."""
    usual = {name: value for name in FIELDS.places if (value := defaults.get(name)) is not None}
    if usual:
        try:
            read(FIELDS, usual)
        except BadRequest as error:
            why = f"the model's generation_config.json is invalid: {error.message}"
            raise BadRequest(why, param=error.param) from None
    return read(FIELDS, usual | mine)
