"""The formats of structural tags, XGrammar's notation (https://xgrammar.mlc.ai/docs/tutorials/structural_tag.html).

It is what clients send, and what a request's constraint is written in on its way to the engine. Three members are this
server's own: `style` "python", "gemma" and the like of a JSON schema (notations.py), `most` of tags with a separator,
and `special` of any text: false for the text of a value, in which the special tokens of a vocabulary have no place.
"""

from __future__ import annotations

from ..types import Json

ANY_TEXT: Json = {"type": "any_text"}
ONE_LINE = "one_line"
"""The style of JSON as Python writes it: one blank behind a colon and a comma, and no others."""
ANY_VALUE: Json = {"type": "any_text", "special": False}
"""Text without special tokens, which are not shown in a value."""


def text(value: str) -> Json:
    """Returns exactly this text."""
    return {"type": "const_string", "value": value}


def json_value(schema: object, style: str = "json") -> Json:
    """Returns the format of a value of a JSON schema.

    Args:
        schema: The schema.
        style: The notation in which the value is written.
    """
    form: Json = {"type": "json_schema", "json_schema": schema}
    return form if style == "json" else {**form, "style": style}


def regex(pattern: str) -> Json:
    """Returns a text that the regular expression matches whole."""
    return {"type": "regex", "pattern": pattern}


def tag(begin: str, content: Json, end: str) -> Json:
    """Returns the content between two texts."""
    return {"type": "tag", "begin": begin, "content": content, "end": end}


def until(end: str, text: Json = ANY_TEXT) -> Json:
    """Returns any text up to this end, inclusive."""
    return tag("", text, end)


def optional(form: Json) -> Json:
    """Returns the format or nothing."""
    return {"type": "optional", "content": form}


def sequence(*forms: Json | None) -> Json:
    """Returns the formats one after the other, without those that are None or an empty text; an empty text for none."""
    parts: list[Json] = []
    for form in forms:
        if form is None or form == text(""):
            continue
        whole = form.get("type") == "sequence" and isinstance(form.get("elements"), list)
        parts += form["elements"] if whole else [form]
    if len(parts) < 2:
        return parts[0] if parts else text("")
    return {"type": "sequence", "elements": parts}


def either(*forms: Json | None) -> Json:
    """Returns one of the formats that are not None."""
    parts = [form for form in forms if form is not None]
    return parts[0] if len(parts) == 1 else {"type": "or", "elements": parts}
