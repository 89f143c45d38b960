"""Reads multipart/form-data bodies, and converts the strings in them to values of request fields.

https://www.rfc-editor.org/rfc/rfc7578. The body is in memory or in a file, which transports/cycle.py closes when the
request has ended, and file parts are slices of it. A field with several values is sent as `name` or `name[]` once for
each, an object as `name[member]` for each member, as OpenAI's client does, or as JSON. If a field that is not an array
has several files, the last one counts. An empty value of a field that is not an array means absent, since forms have no
null.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from ...api.fields import Field, FieldSet, require_identity
from ...api.queries import typed
from ...errors import BadRequest, UnsupportedMediaType
from ...media.file_slice import FileSlice
from ...observability.logging import safe
from ...types import Json, Request

FORM = "multipart/form-data"
MAX_PARTS = 64
MAX_VALUE = 1 << 20
"""The most bytes of a part that is not a file."""
MAX_NAME = 200
PIECE = 1 << 18
"""The bytes of a stored body that are read at once. Pieces of 1 MB need new memory pages each time, and cost more."""
_MEMBER = re.compile(r"(?P<name>[^\[\]]+)\[(?P<member>[^\[\]]*)\]")


@dataclass(frozen=True, slots=True)
class FilePart:
    """A file in a form."""

    data: memoryview | FileSlice = field(repr=False)
    """The content: a slice of the body in memory, or of the file in which the body is stored."""
    name: str = ""
    """The name that the client gave the file; "" if unknown."""


def read_file(value: object, name: str = "file") -> FilePart:
    """Returns the file that is a field's value. Raises BadRequest for a text, and for several files in an array."""
    if isinstance(value, list) and len(value) == 1:
        [value] = value
    if isinstance(value, list):
        raise BadRequest(f"{name} must be one file, not {len(value)}", param=name)
    if not isinstance(value, FilePart):
        raise BadRequest(f"{name} must be a file, sent as a part with a file name", param=name)
    return value


@dataclass(frozen=True, slots=True)
class Form:
    """The parts of a multipart body."""

    values: list[tuple[str, str]]
    """The name and the text of each part, in order."""
    files: dict[str, list[FilePart]]
    """The files of each name, in order."""


def read_form(request: Request) -> Form:
    """Parses the body of a request. Raises UnsupportedMediaType and BadRequest."""
    from python_multipart.exceptions import FormParserError  # late, because it takes some ms
    from python_multipart.multipart import parse_options_header

    logging.getLogger("python_multipart").setLevel(logging.ERROR)  # it warns of errors that are answered with 400
    media, options = parse_options_header(request.headers.get("content-type", ""))
    if media.decode("latin-1").lower() != FORM:
        raise UnsupportedMediaType(f"send the file in a form with the media type {FORM}")
    require_identity(request)
    try:
        return _Reader(options.get(b"boundary", b""), request).read()
    except FormParserError as error:
        raise _broken(" ".join(str(error).split())[:200]) from None


def _broken(why: str) -> BadRequest:
    return BadRequest(f"Failed to parse multipart data: {why}")


class _Reader:
    """The callbacks of a MultipartParser. The data of a part are a range of the body, however the body is divided."""

    def __init__(self, boundary: bytes, request: Request) -> None:
        if not boundary:
            raise _broken("the header Content-Type has no boundary")
        self._boundary = boundary
        self._request = request
        self._form = Form([], {})
        self._parts = 0
        self._ended = False
        self._header = self._text = b""
        self._headers: dict[bytes, bytes] = {}
        self._range = (0, 0)
        self._piece, self._place = b"", 0  # the piece that is being parsed, and its position in the body

    def read(self) -> Form:
        from python_multipart.multipart import MultipartParser

        parser = MultipartParser(
            self._boundary,
            {
                "on_part_begin": self._begin,
                "on_header_field": self._add_name,
                "on_header_value": self._add_value,
                "on_header_end": self._end_header,
                "on_part_data": self._add_data,
                "on_part_end": self._end_part,
                "on_end": self._end,
            },
        )
        for place, piece in self._pieces():
            self._place, self._piece = place, piece
            parser.write(piece)
        if not self._ended:
            raise _broken("the body ends before its last boundary")
        return self._form

    def _pieces(self) -> Iterator[tuple[int, bytes]]:
        stored = self._request.spool
        if stored is None:
            yield 0, self._request.body
            return
        for place in range(0, stored.size, PIECE):
            yield place, stored.read(place, PIECE)

    def _slice(self) -> memoryview | FileSlice:
        start, end = self._range
        stored = self._request.spool
        return memoryview(self._request.body)[start:end] if stored is None else FileSlice(stored, start, end - start)

    def _add_name(self, data: bytes, start: int, end: int) -> None:
        self._header += data[start:end]

    def _add_value(self, data: bytes, start: int, end: int) -> None:
        self._text += data[start:end]

    def _add_data(self, data: bytes, start: int, end: int) -> None:
        """Extends the range of the body that the current part's data occupy.

        Args:
            data: The bytes that are parsed: the current piece of the body, or bytes from the end of the piece before
                it, which were held back since they looked like the beginning of a boundary.
            start: The index in `data` of the part's first byte.
            end: The index after the part's last byte.
        """
        if data is self._piece:
            start, end = self._place + start, self._place + end
        else:
            start, end = self._place - (end - start), self._place
        self._range = (self._range[0] if self._range[1] else start, end)

    def _begin(self) -> None:
        self._parts += 1
        if self._parts > MAX_PARTS:
            raise _broken(f"it has more than {MAX_PARTS} parts")
        self._headers, self._range = {}, (0, 0)

    def _end_header(self) -> None:
        self._headers[self._header.lower()] = self._text
        self._header = self._text = b""

    def _end_part(self) -> None:
        name, filename = _disposition(self._headers.get(b"content-disposition", b""))
        coding = self._headers.get(b"content-transfer-encoding", b"binary").strip().lower()
        if coding not in (b"binary", b"8bit", b"7bit"):
            raise _broken(f"the content transfer encoding of {name} is not supported")
        if filename is not None:
            self._form.files.setdefault(name.removesuffix("[]"), []).append(FilePart(self._slice(), filename))
            return
        if self._range[1] - self._range[0] > MAX_VALUE:
            raise BadRequest(f"{name} has more than {MAX_VALUE} bytes", param=name)
        try:
            self._form.values.append((name, str(self._slice()[:], "utf-8")))
        except UnicodeDecodeError:
            raise BadRequest(f"{name} is not UTF-8", param=name) from None

    def _end(self) -> None:
        self._ended = True


def _disposition(header: bytes) -> tuple[str, str | None]:
    """Returns the name and the file name of a part; the file name is None for a part that is not a file."""
    from python_multipart.multipart import parse_options_header

    kind, options = parse_options_header(header)
    if kind.lower() != b"form-data" or b"name" not in options:
        raise _broken("a part has no name")
    name = safe(options[b"name"].decode("utf-8", "replace"), MAX_NAME)
    if b"filename" in options:
        return name, options[b"filename"].decode("utf-8", "replace")
    return name, "" if b"filename" in header.lower() else None


# --- values


def body_of(fields: FieldSet, form: Form) -> Json:
    """Converts a form to the JSON body that `fields.read` takes; texts that are not valid values remain texts."""
    body: Json = {}
    for key, text in form.values:
        found = _MEMBER.fullmatch(key)
        name, member = (found["name"], found["member"]) if found else (key, None)
        known = fields.named(name) if name in fields.places else None
        if known is None or (member is not None and known.kind != "array" and not known.fields):
            body.setdefault(key, text)
        elif known.kind == "array":
            body.setdefault(name, []).append(text)
        elif member is not None:
            before = body.get(name)
            body[name] = (before if isinstance(before, dict) else {}) | {member: _member(known, member, text)}
        elif text:
            body[name] = typed(known, text)
    for name, files in form.files.items():
        if name in fields.places:
            body[name] = files if fields.named(name).kind == "array" else files[-1]
    return body


def _member(known: Field, member: str, text: str) -> Any:
    found = next((one for one in known.fields if one.name == member), None)
    return typed(found, text) if found is not None else text
