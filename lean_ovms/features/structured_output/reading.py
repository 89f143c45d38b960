"""Reads the fields of a request that constrain its answer, in OpenAI's, XGrammar's and vLLM's forms.

They are response_format (in which OVMS takes any XGrammar format), and vLLM's structured_outputs and guided_* fields.
The result is an OutputConstraint with an XGrammar format, which the engine compiles later.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import orjson

from ...api.fields import parsed
from ...api.generation.common_fields import FORMATS
from ...config import Config
from ...errors import BadRequest, GrammarInvalid, GrammarTooComplex
from ...types import Json, OutputConstraint, SamplingParams, ToolOffer
from .feature import StructuredOutputOptions
from .schemas import ANY_OBJECT

XGRAMMAR_FORMATS = (
    *("const_string", "regex", "grammar", "any_text", "sequence", "or", "tag", "triggered_tags"),
    *("tags_with_separator", "qwen_xml_parameter"),
)


def read_rule(
    asked: Json, offer: ToolOffer, config: Config, sampling: SamplingParams, *, combines: bool
) -> tuple[OutputConstraint | None, list[str]]:
    """Reads the constraint of an answer and its tool calls, or None, and warnings for the client. Raises BadRequest."""
    constraint, notices = _constraint(asked, config)
    return _with_tools(constraint, offer, config, sampling, combines=combines), notices


def _constraint(requested: Json, config: Config) -> tuple[OutputConstraint | None, list[str]]:
    """Returns the constraint of the answer's content, and warnings for ignored formats. Raises BadRequest."""
    options = config.of(StructuredOutputOptions)
    if len(requested) > 1:
        _refuse_different(requested)
    for name, value in requested.items():
        strict = name not in FORMATS
        try:
            form = _READERS[name](value, name)
        except GrammarInvalid as error:
            if strict or options.strict_response_format:
                raise
            return None, [f"{name} was not enforced: {error.message}"]
        if form is not None and len(orjson.dumps(form)) > options.grammar_max_bytes:
            raise GrammarTooComplex(f"{name} has more than {options.grammar_max_bytes} bytes", param=name)
        return (None if form is None else OutputConstraint(format=form, param=name, strict=strict)), []
    return None, []


def _refuse_different(requested: Json) -> None:
    """Raises BadRequest for two different constraints; clients may send one in the forms of several vLLM versions."""
    (first, value), *others = requested.items()
    form = _READERS[first](value, first)
    for name, other in others:
        if _READERS[name](other, name) != form:
            raise BadRequest(f"{first} and {name} cannot be used together", param=name)


def _with_tools(
    constraint: OutputConstraint | None, offer: ToolOffer, config: Config, sampling: SamplingParams, *, combines: bool
) -> OutputConstraint | None:
    """Adds the rules of tool_choice, parallel_tool_calls and strict to a constraint.

    Args:
        constraint: The constraint of the answer's content; None if it is free.
        offer: The tools, and whether one must be called.
        config: The model's configuration.
        sampling: The parameters of the request.
        combines: Whether grammars work together with beam search and min_tokens. GenAI ignores grammars in beam search,
            and min_tokens breaks them; if False, calls in such requests are constrained only if one is required.

    Returns:
        The constraint, or None if neither content nor calls are constrained.

    Raises:
        BadRequest: A strict constraint of the answer excludes a call that is required.
    """
    calls = ""
    if offer.tools and offer.required:
        if constraint is not None and constraint.strict:
            why = f"{constraint.param} and a tool_choice that requires a call cannot be used together"
            raise BadRequest(why, param=constraint.param)
        calls = "required"
    elif offer.tools and (offer.strict or config.of(StructuredOutputOptions).enable_tool_guided_generation):
        calls = "schema" if combines or (sampling.beams == 1 and not sampling.min_tokens) else ""
    if constraint is None and not calls:
        return None
    base = constraint or OutputConstraint(param="tool_choice" if calls == "required" else "tools")
    return replace(base, tool_calls=calls)


def read_format(form: Json, param: str = "response_format") -> Json | None:
    """Converts OpenAI's or XGrammar's format object to XGrammar's, or to None for plain text. Raises GrammarInvalid."""
    kind = form.get("type")
    if kind == "text":
        return None
    if kind in ("json_object", "json"):
        # llama.cpp, Together and Fireworks have the schema in `schema`; TGI and huggingface_hub in `value`.
        key, schema = next(((key, form[key]) for key in ("schema", "value") if form.get(key)), ("", ANY_OBJECT))
        if not isinstance(schema, dict):
            raise GrammarInvalid(f"{param}.{key} is not an object", param=f"{param}.{key}")
        return {"type": "json_schema", "json_schema": schema}
    if kind == "regex" and "value" in form:
        return _regex(form["value"], f"{param}.value")
    if kind == "json_schema":
        return {"type": "json_schema", "json_schema": _schema(form, param)}
    if kind == "structural_tag":
        return _structural_tag(form, param)
    if kind in XGRAMMAR_FORMATS:
        return form
    raise GrammarInvalid(f"{param}.type is unknown: {str(kind)[:40]!r}", param=f"{param}.type")


def _schema(form: Json, param: str) -> Any:
    """Returns the JSON schema of a response format.

    It is in {"json_schema": {"name", "schema"}}, {"json_schema": schema} or, in the Responses API, {"name", "schema"}.
    """
    inner = form.get("json_schema", form)
    if isinstance(inner, dict) and isinstance(inner.get("schema"), (dict, bool)):
        return inner["schema"]
    if inner is form or not isinstance(inner, (dict, bool)):
        raise GrammarInvalid(f"{param}.json_schema.schema is missing or is not an object", param=param)
    if isinstance(inner, dict) and set(inner) <= {"name", "description", "strict", "schema"} and inner:
        raise GrammarInvalid(f"{param}.json_schema.schema is missing or is not an object", param=param)
    return inner


def _structural_tag(form: Json, param: str) -> Json:
    """Converts a structural tag to XGrammar's format.

    It has the form {"format": ...}, or the older {"structures": [{"begin", "schema", "end"}], "triggers": [...]}.
    """
    inner = form.get("format")
    if isinstance(inner, dict):
        return inner
    structures, triggers = form.get("structures"), form.get("triggers")
    if not isinstance(structures, list) or not isinstance(triggers, list):
        raise GrammarInvalid(f"{param} has neither format nor structures and triggers", param=param)
    tags = []
    for one in structures:
        if not isinstance(one, dict) or not all(isinstance(one.get(key), str) for key in ("begin", "end")):
            raise GrammarInvalid(f"{param}.structures need begin, schema and end", param=param)
        content = {"type": "json_schema", "json_schema": one.get("schema", {})}
        tags.append({"type": "tag", "begin": one["begin"], "content": content, "end": one["end"]})
    return {"type": "triggered_tags", "triggers": triggers, "tags": tags}


# --- vLLM's


def _structured(value: Json, param: str) -> Json:
    requested = {key: part for key, part in value.items() if key in _PARTS and part not in (None, False)}
    if len(requested) != 1:
        raise BadRequest(f"{param} needs exactly one of {', '.join(_PARTS)}", param=param)
    [(key, part)] = requested.items()
    return _PARTS[key](part, f"{param}.{key}")


def _json(value: Any, param: str) -> Json:
    schema = _parsed(value, param) if isinstance(value, str) else value
    if not isinstance(schema, (dict, bool)):
        raise BadRequest(f"{param} is not a JSON schema", param=param)
    return {"type": "json_schema", "json_schema": schema}


def _json_object(value: Any, param: str) -> Json:
    if value is not True:
        raise BadRequest(f"{param} must be true", param=param)
    return {"type": "json_schema", "json_schema": ANY_OBJECT}


def _regex(value: Any, param: str) -> Json:
    return {"type": "regex", "pattern": _text(value, param)}


def _grammar(value: Any, param: str) -> Json:
    return {"type": "grammar", "grammar": _text(value, param)}


def _choice(value: Any, param: str) -> Json:
    if not isinstance(value, list) or not value or not all(isinstance(c, str) and c for c in value):
        raise BadRequest(f"{param} is not a list of strings", param=param)
    return {"type": "or", "elements": [{"type": "const_string", "value": c} for c in dict.fromkeys(value)]}


def _tag(value: Any, param: str) -> Json:
    form = _parsed(value, param) if isinstance(value, str) else value
    if not isinstance(form, dict):
        raise BadRequest(f"{param} is not an object", param=param)
    return _structural_tag(form, param)


def _text(value: Any, param: str) -> str:
    if not isinstance(value, str) or not value:
        raise BadRequest(f"{param} is not a non-empty string", param=param)
    return value


def _parsed(text: str, param: str) -> Any:
    try:
        return parsed(text)
    except ValueError:
        raise BadRequest(f"{param} is not valid JSON", param=param) from None


_PARTS: dict[str, Callable[[Any, str], Json]] = {
    "json": _json,
    "json_object": _json_object,
    "regex": _regex,
    "choice": _choice,
    "grammar": _grammar,
    "structural_tag": _tag,
}
_READERS: dict[str, Callable[[Any, str], Json | None]] = {
    **dict.fromkeys(FORMATS, read_format),
    "structured_outputs": _structured,
    "guided_json": _json,
    "guided_regex": _regex,
    "guided_choice": _choice,
    "guided_grammar": _grammar,
    "json_schema": _json,
    "grammar": _grammar,
    "regex": _regex,
    "ebnf": _grammar,
}
