"""The formats of structural tags, XGrammar's notation (https://xgrammar.mlc.ai/docs/tutorials/structural_tag.html).

Clients send this notation, and the constraint of a request is sent to the engine in it. Three members are this server's
own: `style` of a JSON Schema, such as "python" or "gemma" (notations.py); `most` of tags with a separator; and
`special` of any text, which is false for the text of a value that must not contain special tokens.
"""

from __future__ import annotations

from ..types import Json

ANY_TEXT: Json = {"type": "any_text"}
ONE_LINE = "one_line"
"""The style of JSON as Python writes it: one blank after a colon and a comma, and no others."""
ANY_VALUE: Json = {"type": "any_text", "special": False}
"""Any text without special tokens, for a value."""


def text(value: str) -> Json:
    """Returns the format of exactly this text."""
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
    """Returns the format of a text that the regular expression matches as a whole."""
    return {"type": "regex", "pattern": pattern}


def tag(begin: str, content: Json, end: str) -> Json:
    """Returns the format of some content between two fixed texts."""
    return {"type": "tag", "begin": begin, "content": content, "end": end}


def until(end: str, text: Json = ANY_TEXT) -> Json:
    """Returns the format of any text up to and including this end."""
    return tag("", text, end)


def optional(form: Json) -> Json:
    """Returns a format that allows this one or nothing."""
    return {"type": "optional", "content": form}


def sequence(*forms: Json | None) -> Json:
    """Returns the format of several formats in sequence, without None and empty texts; "" if nothing is left."""
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
    """Returns a format that allows any one of these. None is skipped."""
    parts = [form for form in forms if form is not None]
    return parts[0] if len(parts) == 1 else {"type": "or", "elements": parts}
