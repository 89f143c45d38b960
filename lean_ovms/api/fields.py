"""Field, the declaration of one request field, the reader of JSON bodies, and what /openapi.json says of an endpoint.

Validation, the error message with its `param`, the documentation table and the OpenAPI document follow from a Field.
JSON null means absent, for every field, and a number without a fraction is an integer, however written. Unknown fields
are ignored, as in OVMS and vLLM, with a warning (generation/common_fields.py).
"""

from __future__ import annotations

import math
from codecs import BOM_UTF8
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from functools import cached_property
from typing import Any, TypeVar

import orjson

from ..errors import BadRequest, UnsupportedMediaType
from ..observability.logging import safe
from ..types import Json, Request
from ..util import chunked_json
from ..util.chunked_json import TextTooLong, TooDeep

Values = Mapping[str, Any]
"""The value of every field of an endpoint by name, defaults included. It is read, and never written: the type says so,
as a MappingProxyType around it costs a chat request 3 us of 45 (2026-11)."""
UINT32_MAX = 4294967295
INT64_MAX = (1 << 63) - 1  # lower numbers than -INT64_MAX are rounded in JSON
ORJSON_LEVELS = 254
COUNTED_BYTES = 1 << 18
ESCAPES_PER_VALUE = 8


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a request."""

    name: str
    """The key of the field in the JSON object."""
    kind: str
    """The kind of its value: "bool", "number", "int", "uint", "string", "object", "array" or "any"."""
    help: str
    """The meaning of the field in the documentation, a phrase without a period."""
    _: KW_ONLY
    low: float | None = None
    """The least value."""
    high: float | None = None
    """The greatest value."""
    above: float | None = None
    """A bound that the value must be greater than."""
    below: float | None = None
    """A bound that the value must be less than."""
    wrong: str = ""
    """The error message for a value of the wrong type, if OVMS has its own text; empty for the usual message."""
    outside: str = ""
    """The error message for a value out of bounds or not among the choices; empty for the usual message."""
    choices: Sequence[Any] = ()
    """The only allowed values; empty if any value of the type is allowed."""
    read: Callable[[Any], Any] | None = None
    """The function that checks and converts a value of the right type; it may raise BadRequest."""
    default: Any = None
    """The value of an absent field."""
    builtin: float | None = None
    """The default, shown in the documentation, if neither the request nor generation_config.json sets the value."""
    required: bool = False
    """Whether the documentation calls the field required. The endpoint itself raises the error if it is missing."""
    fields: tuple[Field, ...] = ()
    """The members of the object, if the value is an object."""
    schema: Json | None = None
    """More keywords for the field's JSON Schema in the OpenAPI document."""
    needs: str = ""
    """The capability that the engine must have (a member of ModelInfo.capabilities). Without it the field has no
    effect, and the response gets a Warning header."""
    seam: str = ""
    """The extension point (a seam of manifest.py) that reads this field. If no feature of the server is registered for
    it, the field has no effect, and the response gets a Warning header."""


class FieldSet(tuple[Field, ...]):
    """The fields of an endpoint's body."""

    @cached_property
    def defaults(self) -> Json:
        """The values of a body without any of these fields."""
        return {field.name: field.default for field in self}

    @cached_property
    def places(self) -> dict[str, int]:
        """The position of each field, by name."""
        return {field.name: place for place, field in enumerate(self)}

    def named(self, name: str) -> Field:
        """Returns the field of this name."""
        return self[self.places[name]]

    @cached_property
    def plain(self) -> dict[str, type[Any]]:
        """The Python types of fields without bounds or conversion, whose values need no further check."""
        types = {"bool": bool, "string": str, "object": dict, "array": list}
        free = [field for field in self if field.kind in types and field.read is None and not field.choices]
        return {field.name: types[field.kind] for field in free}

    @cached_property
    def needs(self) -> dict[str, str]:
        """The capability of the engine that a field needs, by the field's name, unless every engine supports it."""
        return {field.name: field.needs for field in self if field.needs}

    @cached_property
    def seams(self) -> dict[str, str]:
        """The extension point that reads a field, by the field's name; fields that every server reads are left out."""
        return {field.name: field.seam for field in self if field.seam}

    @cached_property
    def names(self) -> frozenset[str]:
        """The names of all fields."""
        return frozenset(self.places)


_TYPES: dict[str, tuple[tuple[type[Any], ...], str]] = {
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
    """Returns the request's JSON object. Raises what json_value does, and BadRequest if the body is something else."""
    body = json_value(request, most_values)
    if not isinstance(body, dict):
        raise BadRequest("JSON body must be an object", code="invalid_json")
    return body


def json_value(request: Request, most_values: int = 0) -> Any:
    """Returns the JSON value that is the request's body.

    Args:
        most_values: The most JSON values that the body may have, estimated before it is parsed; 0 for no limit.

    Raises:
        UnsupportedMediaType: The Content-Type is not JSON, or the body is compressed.
        BadRequest: The body is not JSON, or has too many values.
    """
    media = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media not in ("", "application/octet-stream", "application/json") and not media.endswith("+json"):
        raise UnsupportedMediaType("Send the body as JSON with the header Content-Type: application/json")
    require_identity(request)
    if most_values and _values(request.body, most_values) > most_values:
        raise BadRequest(f"the JSON body has more than {most_values} values", code="too_many_values")
    try:
        return parsed_body(request.body)
    except TooDeep:
        raise BadRequest("JSON body exceeds maximum nesting depth", code="invalid_json") from None
    except TextTooLong as error:
        raise BadRequest(f"Invalid string in JSON body: {error}", code="string_above_max_length") from None
    except ValueError as error:
        raise BadRequest(f"Cannot parse JSON body: {error}", code="invalid_json") from None


def require_identity(request: Request) -> None:
    """Raises UnsupportedMediaType if the body of a request is compressed."""
    coding = request.headers.get("content-encoding", "identity")
    if coding.lower() != "identity":
        raise UnsupportedMediaType(f"Content-Encoding {safe(coding, 40)} is not supported; send the body uncompressed")


def parsed_body(data: bytes) -> Any:
    """Parses the JSON body of a request. Raises ValueError, and TooDeep for more than about 120 levels.

    A byte order mark is skipped: PowerShell writes one, and RFC 8259 8.1 allows this. Unpaired surrogates become
    U+FFFD: an agent that cuts a tool's result inside an emoji sends one with each further request.
    """
    try:
        return _parsed_body(data)
    except (TooDeep, TextTooLong):
        raise
    except ValueError:
        if b"\\ud" not in data and b"\\uD" not in data:
            raise
        from ..util import lone_surrogates  # late: hardly any body has one

        mended = lone_surrogates.replaced(data)
        if mended == data:
            raise
    return _parsed_body(mended)


def _parsed_body(data: bytes) -> Any:
    return chunked_json.loads(data) if len(data) > chunked_json.PIECE_BYTES else parsed(data.removeprefix(BOM_UTF8))


def parsed(data: bytes | str) -> Any:
    """Parses JSON. Raises ValueError if it is invalid, and TooDeep beyond 120 levels: orjson writes only 254."""
    try:
        value = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        if "depth limit" in error.msg or "ecursion limit" in error.msg:  # as different releases of orjson call it
            raise TooDeep("it is nested too deeply") from None
        raise
    brackets = data.count(b"[") + data.count(b"{") if isinstance(data, bytes) else data.count("[") + data.count("{")
    if brackets > chunked_json.MAX_LEVELS:  # fewer brackets cannot be nested deeper
        deep = value
        for _ in range(ORJSON_LEVELS - chunked_json.MAX_LEVELS):
            deep = [deep]
        try:
            orjson.dumps(deep)
        except TypeError:
            raise TooDeep("it is nested too deeply") from None
    return value


def parsed_object(text: str) -> Json | None:
    """Parses a JSON object. Returns {} for an empty text, and None if the text is not a JSON object."""
    try:
        value = parsed(text or "{}")
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def _values(body: bytes, most: int) -> int:
    """Returns an upper bound of the number of values in a JSON text; counting stops above `most`.

    Commas, colons and brackets are counted, also those inside strings, and an eighth of the escapes. The limit is
    needed because parsing blocks the event loop as one call into C: 33 ms for 30 MB of text, but 1.5 s for 64 MB of
    empty objects, and 110 ms for 30 MB of escapes (2026-11). The count itself proceeds piece by piece, so that the
    event loop gets its turns.
    """
    values = escapes = 0
    for start in range(0, len(body), COUNTED_BYTES):
        end = start + COUNTED_BYTES
        values += sum(body.count(mark, start, end) for mark in (b",", b":", b"[", b"{"))
        escapes += body.count(b"\\", start, end)
        if values + escapes // ESCAPES_PER_VALUE > most:
            break
    return values + escapes // ESCAPES_PER_VALUE


def read(fields: FieldSet, body: Json) -> Values:
    """Returns the value of every field by name, or its default if it is absent or null.

    Raises BadRequest, which names the field. If several fields are wrong, the error is that of the field declared
    first. Only fields that the body has are checked: most bodies have five of eighty.
    """
    values, places, plain = fields.defaults.copy(), fields.places, fields.plain
    for name in sorted(filter(places.__contains__, body), key=places.__getitem__):
        value = body[name]
        values[name] = value if type(value) is plain.get(name) else read_one(fields[places[name]], value)
    return values


def read_one(field: Field, value: Any) -> Any:
    """Checks a value against its field, and returns it converted. Raises BadRequest."""
    if value is None:
        return field.default
    if field.kind in ("int", "uint"):
        value = whole(value)
    types, text = _TYPES[field.kind]
    if not isinstance(value, types) or (isinstance(value, bool) and field.kind in ("number", "int", "uint")):
        raise BadRequest(field.wrong or f"{field.name} {text}", param=field.name)
    if field.kind == "uint" and value < 0:
        raise BadRequest(field.wrong or f"{field.name} {text}", param=field.name)
    if field.kind in ("number", "int", "uint") and not _inside(field, value):
        raise BadRequest(field.outside or f"{field.name} out of range{_interval(field)}", param=field.name)
    if field.choices and value not in field.choices:
        known = ", ".join(map(str, field.choices))
        raise BadRequest(field.outside or f"{field.name} must be one of: {known}", param=field.name)
    return field.read(value) if field.read else value


def require(fields: FieldSet, values: Values, why: str = "is missing") -> Values:
    """Returns the values unchanged if no required field is absent. Raises BadRequest otherwise."""
    for field in fields:
        if field.required and values[field.name] is None:
            raise BadRequest(f"{field.name} {why}", param=field.name)
    return values


def one_of(value: Any, param: str, allowed: Sequence[str]) -> Any:
    """Returns a value that is null or one of the allowed words. Raises BadRequest for any other value."""
    if value is not None and value not in allowed:
        raise BadRequest(f"{param} must be one of: {', '.join(allowed)}", param=param)
    return value


def whole(value: Any) -> Any:
    """Converts a number without a fraction, such as 5.0 or 1e3, to an integer; returns any other value unchanged."""
    return int(value) if type(value) is float and value.is_integer() else value


def _inside(field: Field, value: float) -> bool:
    return (
        (field.low is None or value >= field.low)
        and (field.high is None or value <= field.high)
        and (field.above is None or value > field.above)
        and (field.below is None or value < field.below)
        and abs(value) < math.inf  # False for NaN, too
    )


def _interval(field: Field) -> str:
    low = field.low if field.low is not None else 0 if field.kind == "uint" else field.above
    high = field.high if field.high is not None else field.below
    form = float if field.kind == "number" else int
    left = " [" if field.below is not None or field.kind != "number" else "("
    right = ")" if field.kind == "number" else "]"
    return f"{left}{'-inf' if low is None else form(low)}, {'inf' if high is None else form(high)}{right}"


H = TypeVar("H", bound=Callable[..., Any])
_docs: dict[Callable[..., Any], RouteDoc] = {}


@dataclass(frozen=True, slots=True)
class RouteDoc:
    """Documents the endpoint of a handler, as a decorator: `@RouteDoc("The models served")`."""

    summary: str
    """What the endpoint does."""
    body: tuple[Field, ...] = ()
    """The fields of the body that the handler reads."""
    other_clients: bool = False
    """Whether clients of other APIs use the endpoint too, with additional fields (manifest.BodyRow)."""
    form: bool = False
    """Whether the body is multipart/form-data."""
    body_optional: bool = False
    """Whether a request may have no body."""
    query: tuple[Field, ...] = ()
    """The fields of the query that the handler reads."""
    answer: str = "object"
    """The type of the response: "object", "array" or both joined by "or", a media type, or "" for no body."""
    stream: bool = False
    """Whether the response is a stream of server-sent events if the request sets `stream`."""
    media: tuple[str, ...] = ()
    """Further media types of the response."""
    errors: tuple[int, ...] = ()
    """HTTP error statuses, besides those that follow from the other attributes."""
    rules: Json | None = None
    """Keywords of JSON Schema for the body as a whole; without `body`, its whole schema."""
    upgrade: bool = False
    """Whether it switches the connection to another protocol."""

    def __call__(self, handler: H) -> H:
        _docs[handler] = self
        return handler


def doc_of(handler: Callable[..., Any]) -> RouteDoc:
    """Returns the documentation of a handler; without RouteDoc its summary is the first line of the docstring."""
    return _docs.get(handler) or RouteDoc((handler.__doc__ or handler.__name__).strip().splitlines()[0])
