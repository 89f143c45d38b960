"""Reads query strings, and texts that stand for the values of request fields."""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import parse_qs

from ..errors import BadRequest
from .fields import Field, FieldSet, Values, parsed, read

MAX_PARAMETERS = 100
"""The most parameters that a query may have."""
TRUE, FALSE = frozenset(("true", "1", "yes", "on")), frozenset(("false", "0", "no", "off"))
_NUMBER = re.compile(r"[+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?", re.ASCII)
_INTEGER = re.compile(r"[+-]?\d{1,40}", re.ASCII)


def read_query(fields: FieldSet, query: str) -> Values:
    """Returns a query's parameters as the values of these fields, the last one if repeated. Raises BadRequest.

    An empty text counts as absent; an empty number or boolean is an error.
    """
    try:
        given = parse_qs(query, keep_blank_values=True, max_num_fields=MAX_PARAMETERS)
    except ValueError:
        raise BadRequest(f"the query has more than {MAX_PARAMETERS} parameters") from None
    texts = [(field, given[field.name][-1]) for field in fields if field.name in given]
    return read(fields, {field.name: typed(field, text) for field, text in texts if text or field.kind != "string"})


def typed(known: Field, text: str) -> Any:
    """Returns the value that a text stands for in a field of this type; the text itself if it is none."""
    stripped = text.strip()
    if known.kind == "bool":
        lower = stripped.lower()
        return True if lower in TRUE else False if lower in FALSE else text
    if known.kind in ("int", "uint") and _INTEGER.fullmatch(stripped):
        return int(stripped)
    if known.kind in ("int", "uint", "number"):
        return float(stripped) if _NUMBER.fullmatch(stripped) else text
    if known.fields and stripped.startswith("{"):
        try:
            return parsed(stripped)
        except ValueError:
            return text
    return text
