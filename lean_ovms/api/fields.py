"""The row type for request fields, and the reader of rows.

A field is one row: name, kind, bounds, help. From it follow validation, the error message with its `param`, and the
documentation table. JSON null means absent, for every field. Unknown fields are ignored, as OVMS and vLLM do;
unsupported.py tells of them.
"""

from __future__ import annotations

import math
from codecs import BOM_UTF8
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import orjson

from ..errors import BadRequest, UnsupportedMediaType
from ..observability.logging import safe
from ..types import Json, Request

UINT32_MAX = 4294967295
MOST_LEVELS, ORJSON_LEVELS = 120, 254


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """One request field.

    kind: "bool", "number", "int", "uint", "string", "object", "array" or "any". low, high: inclusive bounds.
    above: an exclusive lower bound; below: an exclusive upper one. wrong: message for a value of another kind, where
    OVMS has a text of its own (contract section 2). outside: the same for a value out of bounds.
    read: turns the value of the right kind into what the endpoint works with; raises BadRequest.
    default: what an absent field is read as. builtin: what holds if the model's generation_config.json is silent, too.
    required: it must be there (the endpoint says so in its own words). fields: the members of an object.
    schema: what else there is to say of it, in JSON Schema, for the OpenAPI document.
    """

    name: str
    kind: str
    help: str
    low: float | None = None
    high: float | None = None
    above: float | None = None
    below: float | None = None
    wrong: str = ""
    outside: str = ""
    read: Callable[[Any], Any] | None = None
    default: Any = None
    builtin: float | None = None
    required: bool = False
    fields: tuple[Field, ...] = ()
    schema: Json | None = None


class FieldSet(tuple[Field, ...]):
    """All rows of an endpoint, for reading bodies."""

    @cached_property
    def defaults(self) -> Json:
        """What a body without any of them is read as."""
        return {row.name: row.default for row in self}

    @cached_property
    def places(self) -> dict[str, int]:
        """Where each name stands."""
        return {row.name: place for place, row in enumerate(self)}

    @cached_property
    def names(self) -> frozenset[str]:
        """Every name."""
        return frozenset(self.places)


_KINDS: dict[str, tuple[tuple[type[Any], ...], str]] = {
    "bool": ((bool,), "accepts values true or false"),
    "number": ((int, float), "is not a valid number"),
    "int": ((int,), "is not an integer"),
    "uint": ((int,), "is not an unsigned integer"),
    "string": ((str,), "is not a string"),
    "object": ((dict,), "is not an object"),
    "array": ((list,), "is not an array"),
    "any": ((object,), "is not valid"),
}


def json_body(request: Request, most_values: int = 0) -> Json:
    """The request's JSON object. most_values: in it; 0: not looked at. Raises UnsupportedMediaType and BadRequest."""
    media = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media and media != "application/json" and not media.endswith("+json"):
        raise UnsupportedMediaType("Send the body as JSON with the header Content-Type: application/json")
    coding = request.headers.get("content-encoding", "identity")
    if coding.lower() != "identity":
        raise UnsupportedMediaType(f"Send the body as it is: Content-Encoding {safe(coding, 40)} is not read")
    if most_values and _values(request.body) > most_values:
        raise BadRequest(f"the JSON body has more than {most_values} values", code="too_many_values")
    try:
        body = parsed(request.body.removeprefix(BOM_UTF8))  # PowerShell writes one into files; RFC 8259 8.1 allows this
    except TooDeep:
        raise BadRequest("JSON body exceeds maximum nesting depth") from None
    except ValueError as error:
        raise BadRequest(f"Cannot parse JSON body: {error}") from None
    if not isinstance(body, dict):
        raise BadRequest("JSON body must be an object")
    return body


class TooDeep(ValueError):
    """Brackets inside brackets, too many of them."""


def parsed(data: bytes | str) -> Any:
    """What this JSON says. Raises ValueError for what is none, and TooDeep for brackets deeper than about 120.

    orjson reads a thousand levels and writes 254, so that what came in might not go out again. OVMS allows 100.
    """
    try:
        value = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        if "depth limit" in error.msg or "ecursion limit" in error.msg:  # as different releases of orjson call it
            raise TooDeep("it is nested too deep") from None
        raise
    brackets = data.count(b"[") + data.count(b"{") if isinstance(data, bytes) else data.count("[") + data.count("{")
    if brackets > MOST_LEVELS:  # else it cannot be deep
        deep = value
        for _ in range(ORJSON_LEVELS - MOST_LEVELS):
            deep = [deep]
        try:
            orjson.dumps(deep)
        except TypeError:
            raise TooDeep("it is nested too deep") from None
    return value


def _values(body: bytes) -> int:
    """At most so many values are in this JSON; commas and brackets in texts are counted too. 1 ns a byte.

    Parsing holds everybody up: 64 MB of text for 65 ms, but 64 MB of empty objects for 1.5 s (2026-11).
    """
    return body.count(b",") + body.count(b"[") + body.count(b"{")


def read(rows: FieldSet, body: Json) -> Json:
    """Every row's value by name; its default where absent or null. Raises BadRequest with the field's name as param.

    Of several errors the first row's is told. Only the rows that a body has are looked at: most have five of eighty.
    """
    values, places = rows.defaults.copy(), rows.places
    for place in sorted([places[name] for name in body if name in places]):
        row = rows[place]
        values[row.name] = read_one(row, body[row.name])
    return values


def read_one(row: Field, value: Any) -> Any:
    """One value, checked against its row."""
    if value is None:
        return row.default
    types, text = _KINDS[row.kind]
    if not isinstance(value, types) or (isinstance(value, bool) and row.kind in ("number", "int", "uint")):
        raise BadRequest(row.wrong or f"{row.name} {text}", param=row.name)
    if row.kind == "uint" and value < 0:
        raise BadRequest(row.wrong or f"{row.name} {text}", param=row.name)
    if row.kind in ("number", "int", "uint") and not _inside(row, value):
        raise BadRequest(row.outside or f"{row.name} out of range{_interval(row)}", param=row.name)
    return row.read(value) if row.read else value


def _inside(row: Field, value: float) -> bool:
    return (
        math.isfinite(value)
        and (row.low is None or value >= row.low)
        and (row.high is None or value <= row.high)
        and (row.above is None or value > row.above)
        and (row.below is None or value < row.below)
    )


def _interval(row: Field) -> str:
    low = row.low if row.low is not None else 0 if row.kind == "uint" else row.above
    high = row.high if row.high is not None else row.below
    form = float if row.kind == "number" else int
    left = " [" if row.below is not None or row.kind != "number" else "("
    right = ")" if row.kind == "number" else "]"
    return f"{left}{'-inf' if low is None else form(low)}, {'inf' if high is None else form(high)}{right}"
