"""Reads and writes large JSON in pieces, so that no call into C holds the interpreter for long.

orjson does not let other threads run while it reads or writes: 32 MiB of text take 33 to 65 ms, 262,144 values 40 ms
(2026-11). `loads` passes it members of the outer containers in pieces of up to PIECE_BYTES, and long strings in slices;
`dumps` does likewise. The results are the same as orjson's. Between two pieces a thread yields to the event loop.

Some documents that no client sends are refused, because they could not be divided: names longer than a piece, a piece
of white space between two values, and texts longer than MAX_TEXT_CHARS. Each operation on a string of 30 MB takes 25 ms
if the memory is new (2026-11). Base64 data, such as images, may be as long as the document, since little is done with
it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from io import BytesIO
from itertools import islice, pairwise
from typing import Any

import orjson

PIECE_BYTES = 65536
"""The number of bytes that are parsed in one call: small values of this size take 3 ms, a text 0.1 ms."""
FLAT_BYTES = 8192
"""The number of bytes of short members whose end is searched in one call: empty objects of this size take 1.5 ms."""
FREED_MEMBERS = 1024
"""The number of members of a container that are freed in one call."""
MEMBERS = 1024
"""The number of short members of a list that are written in one call."""
BATCH = 64
"""The number of objects of a list that exist at once while `serialized` writes it."""
SLICE_BYTES, ESCAPED_SLICE_BYTES = 65_536, 32_768
"""The number of bytes of a long string, without and with escapes, processed in one call. orjson allocates 15 times as
much: beyond 1 MB the system would provide new memory each time, which takes one and a half times as long (2026-11)."""
MAX_TEXT_CHARS, MAX_WIDE_TEXT_CHARS = 10 << 20, 4 << 20
"""The most characters of a text in ASCII (OpenAI's limit), and of any other, whose characters have up to 4 bytes."""
MAX_LEVELS = 120

_SPACE = b" \t\r\n"
_MARK = re.compile(rb'["\[\]{}]')
_COLON = re.compile(rb"[ \t\r\n]*:")
_FLAT = re.compile(
    rb'(?:(?:(?:"[^"\\]*"|[\[{][^"\[\]{}]*(?:"[^"\\]*"[^"\[\]{}]*)*[\]}])[^"\[\]{},]*){1,2},[^"\[\]{}]*)+'
)
"""Matches members with commas: texts without escapes, containers of these and of numbers, names with either."""
_ESCAPED = re.compile(
    rb'[^"\\]*(?:\\(?:u(?:[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|(?![dD][89abAB])[0-9a-fA-F]{4})'
    rb'|[^u])[^"\\]*)*',
    re.DOTALL,
)
"""Matches the part of a string that can be cut off without dividing an escape or a surrogate pair."""


_BOM = b"\xef\xbb\xbf"
_BASE64 = bytes(range(0x30, 0x3A)) + bytes(range(0x41, 0x5B)) + bytes(range(0x61, 0x7B)) + b"+/=_-"
_DATA_URL = re.compile(rb"data:[^,\x00-\x1f\x80-\xff]{0,200},")


class TooDeep(ValueError):
    """Raised for JSON that is nested too deeply."""


class TextTooLong(ValueError):
    """Raised for JSON with a text that is too long."""


def loads(data: bytes) -> Any:
    """Parses JSON like orjson.loads, without a byte order mark. Raises ValueError, TooDeep beyond MAX_LEVELS."""
    if len(data) <= PIECE_BYTES:
        return orjson.loads(data.removeprefix(_BOM))
    reader = _Reader(data)
    try:
        return reader.read()
    except ValueError:
        reader.discard()  # the error's traceback keeps it alive
        raise


def free(value: Any) -> None:
    """Empties a large value's containers bit by bit: freeing 250,000 texts in one call takes 15 ms (2026-11)."""
    left = [value] if isinstance(value, (list, dict)) else []
    while left:
        top = left.pop()
        if isinstance(top, list):
            freed = top[-FREED_MEMBERS:]
            del top[-FREED_MEMBERS:]
        else:
            freed = [top.popitem()[1] for _ in range(min(FREED_MEMBERS, len(top)))]
        if top:
            left.append(top)
        left += [inner for inner in freed if inner and isinstance(inner, (list, dict))]


class Written:
    """A list that is serialized as it grows, so that all values that contain it share its JSON."""

    def __init__(self) -> None:
        self.size = 0
        self._pieces: list[bytes] = []  # of PIECE_BYTES or more each
        self._rest = bytearray()

    def extend(self, members: bytes) -> None:
        """Appends members, given as the JSON of a list."""
        if len(members) > 2:
            self._rest += b"," if self.size else b""
            self._rest += memoryview(members)[1:-1]
            self.size += len(members)
        if len(self._rest) >= PIECE_BYTES:
            self._pieces.append(bytes(self._rest))
            self._rest.clear()

    def pieces(self) -> list[bytes]:
        """Returns the list as pieces of JSON. Large pieces are not copied."""
        return [b"[", *self._pieces, bytes(self._rest) + b"]"]


def serialized(members: Iterable[Any]) -> Written:
    """Returns the JSON of a long list, whose members are made and serialized in batches.

    A million objects at once would hold the event loop for 0.1 to 0.2 s of CPU time each time that Python looks for
    unused ones among them (2026-11).
    """
    found, left = Written(), iter(members)
    while batch := list(islice(left, BATCH)):
        found.extend(orjson.dumps(batch))
    return found


class _Pieces:
    """Collects the written pieces: large ones unchanged, small ones joined."""

    def __init__(self) -> None:
        self.found: list[bytes] = []
        self._rest = bytearray()

    def write(self, data: bytes) -> None:
        if len(data) >= PIECE_BYTES // 2:
            self.flush()
            self.found.append(data)
        else:
            self._rest += data
            if len(self._rest) >= PIECE_BYTES:
                self.flush()

    def flush(self) -> None:
        if self._rest:
            self.found.append(bytes(self._rest))
            self._rest.clear()


def dumps(value: Any) -> bytes:
    """Serializes JSON values, and lists of the type Written, like orjson.dumps. Large values are written in pieces."""
    if is_small(value):
        return _dumped(value)
    out = BytesIO()  # its buffer becomes the result without being copied
    _write(value, out)
    return out.getvalue()


def pieces(value: Any) -> list[bytes]:
    """Serializes like `dumps`, and returns the pieces. A Written list is not copied, however large it is."""
    if is_small(value):
        return [_dumped(value)]
    out = _Pieces()
    _write(value, out)
    out.flush()
    return out.found


def is_small(value: Any) -> bool:
    """Returns whether a value is small enough to be written in one call."""
    return _is_small(value, PIECE_BYTES)


def _dumped(value: Any) -> bytes:
    return orjson.dumps(value, default=_fragment)


def _fragment(value: Any) -> orjson.Fragment:
    """Returns the JSON of a Written list for orjson. Raises TypeError for any other value."""
    if not isinstance(value, Written):
        raise TypeError(f"Type is not JSON serializable: {type(value).__name__}")
    return orjson.Fragment(b"".join(value.pieces()))


def _write(value: Any, out: BytesIO | _Pieces) -> None:
    if is_small(value):
        out.write(_dumped(value))
    elif isinstance(value, Written):
        for piece in value.pieces():
            out.write(piece)
    elif isinstance(value, list):
        _write_list(value, out)
    elif isinstance(value, str):
        out.write(b'"')
        for start in range(0, len(value), SLICE_BYTES):
            out.write(orjson.dumps(value[start : start + SLICE_BYTES])[1:-1])
        out.write(b'"')
    else:
        for number, (name, inner) in enumerate(value.items()):
            out.write(b"%b%b:" % (b"," if number else b"{", orjson.dumps(name)))
            _write(inner, out)
        out.write(b"}")


def _write_list(value: list[Any], out: BytesIO | _Pieces) -> None:
    out.write(b"[")
    for start in range(0, len(value), MEMBERS):
        out.write(b"," if start else b"")
        if is_small(members := value[start : start + MEMBERS]):
            out.write(_dumped(members)[1:-1])
            continue
        for number, inner in enumerate(members):
            out.write(b"," if number else b"")
            _write(inner, out)
    out.write(b"]")


def _is_small(value: Any, limit: int) -> bool:
    """Returns whether a value has at most about `limit` characters."""
    left = [value]
    while left and limit >= 0:
        inner = left.pop()
        limit -= 8
        if isinstance(inner, str):
            limit -= len(inner)
        elif isinstance(inner, Written):
            limit -= inner.size
        elif isinstance(inner, dict):
            limit -= sum(map(len, inner))
            left.extend(inner.values())
        elif isinstance(inner, list):
            if len(inner) > limit:
                return False
            left.extend(inner)
    return limit >= 0


@dataclass(slots=True)
class _Container:
    """An array or object whose end has not been read."""

    opened_at: int
    """The offset in the document at which it begins."""
    begin: int
    """The offset of the part that is not in `value` yet."""
    is_object: bool
    """Whether it is an object."""
    comma: int = -1
    """The offset after the last complete member after `begin`; -1 if there is none."""
    value: Any = None
    """The members read so far; None while the container is small."""
    name: str | None = None
    """The name of the member that is being read."""
    filled: bool = False
    """Whether the last member in `value` was read separately, and no comma has followed yet."""
    started: bool = False
    """Whether a comma has been read, so that another member must follow."""


class _Reader:
    """Parses one document. The outermost containers on the stack have a value; the others are small so far."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._stack: list[_Container] = []
        self._start = len(_BOM) if data.startswith(_BOM) else 0
        self._read = 0  # up to here the document is in values
        self._result: Any = None
        self._end = -1  # of the outermost value

    def read(self) -> Any:
        data, at = self._data, self._start
        while (mark := self._next_mark(at)) >= 0:
            if self._end >= 0:
                raise self._invalid("more than one value", mark)
            at = self._flat(mark) or self._at_mark(mark)
            if at - self._read > PIECE_BYTES and self._stack:
                self._flush(at)
        if self._stack or self._end < 0:
            raise self._invalid("the data ends early", len(data))
        if data[self._end :].strip(_SPACE):
            raise self._invalid("more than one value", self._end)
        return self._result

    def discard(self) -> None:
        for container in self._stack:
            free(container.value)
        free(self._result)

    def _flat(self, at: int) -> int:
        """Returns the end of the short members that start at an offset, including commas; 0 if there are none."""
        if not self._stack or not (match := _FLAT.match(self._data, at, at + FLAT_BYTES)):
            return 0
        self._stack[-1].comma = self._data.rfind(b",", at, match.end())
        return match.end()

    def _at_mark(self, mark: int) -> int:
        """Reads what starts or ends with the bracket or quote at `mark`; returns the offset after it."""
        byte = self._data[mark]
        if byte == 0x22:
            return self._string(mark)
        if byte in b"[{":
            self._open(mark)
        else:
            self._close(mark)
        return mark + 1

    def _next_mark(self, at: int) -> int:
        """Returns the offset of the next bracket or quote, -1 at the end. Commas before it are noted."""
        data = self._data
        while True:
            stop = at + PIECE_BYTES
            found = _MARK.search(data, at, stop)
            end = found.start() if found else min(stop, len(data))
            if self._stack:
                comma = data.rfind(b",", at, end)
                if comma >= 0:
                    self._stack[-1].comma = comma
            if found:
                return end
            if end == len(data):
                return -1
            if not self._stack or comma < 0:
                raise self._invalid("a value is too long", at)
            at = comma + 1
            self._flush(at)

    def _open(self, at: int) -> None:
        if len(self._stack) >= MAX_LEVELS:
            raise TooDeep("it is nested too deeply")
        if not self._stack and self._data[self._start : at].strip(_SPACE):
            raise self._invalid("unexpected character", 0)
        self._stack.append(_Container(at, at + 1, self._data[at] == 0x7B))

    def _close(self, at: int) -> None:
        if not self._stack or self._stack[-1].is_object is not (self._data[at] == 0x7D):
            raise self._invalid("unexpected character", at)
        top = self._stack.pop()
        if self._stack and top.value is None:
            return  # part of a piece
        value = self._finished(top, at)
        if self._stack:
            self._add(self._stack[-1], value, at + 1)
        else:
            self._result, self._end = value, at + 1
        self._read = at + 1

    def _finished(self, container: _Container, at: int) -> Any:
        """Returns the value of a container that ends at an offset."""
        if container.value is None:
            return self._parse(container, self._data[container.begin : at])
        self._take(container, at)
        return container.value

    # --- pieces

    def _flush(self, at: int) -> None:
        """Reads all complete members before an offset, in every container that has not ended."""
        stack = self._stack
        for level, container in enumerate(stack):
            if container.value is None:
                container.value = {} if container.is_object else []
            if container.comma >= container.begin:
                self._take(container, container.comma)
                container.started = True
                container.begin, container.comma = container.comma + 1, -1
            if level + 1 < len(stack):
                self._name_member(container, stack[level + 1].opened_at)
        self._read = at

    def _take(self, container: _Container, end: int) -> None:
        """Reads the members of a container up to `end`, the offset of a comma or of the closing bracket."""
        piece = self._data[container.begin : end]
        if not container.filled:
            self._extend(container, piece)
            return
        gap, comma, piece = piece.partition(b",")  # between the member that was read apart and its comma
        if gap.strip(_SPACE):
            raise self._invalid("unexpected character", container.begin)
        container.filled = False
        if comma:
            self._extend(container, piece)

    def _extend(self, container: _Container, piece: bytes) -> None:
        """Adds the members in a piece of JSON to a container; there must be some unless the container is empty."""
        members = self._parse(container, piece)
        if not members and (container.started or container.value or self._data[container.begin + len(piece)] == 0x2C):
            raise self._invalid("a value is missing", container.begin)
        if container.is_object:
            container.value.update(members)
        else:
            container.value += members

    def _parse(self, container: _Container, piece: bytes) -> Any:
        try:
            return orjson.loads(b"{%b}" % piece if container.is_object else b"[%b]" % piece)
        except orjson.JSONDecodeError as error:
            raise self._invalid(error.msg, container.begin) from None

    def _name_member(self, container: _Container, at: int) -> None:
        """Reads what precedes a member that is read separately, which is its name in an object."""
        if container.name is not None or container.begin > at:
            return
        before = self._data[container.begin : at]
        if container.filled:
            gap, comma, before = before.partition(b",")
            if gap.strip(_SPACE) or not comma:
                raise self._invalid("unexpected character", container.begin)
            container.filled, container.started = False, True
        if container.is_object:
            try:
                [container.name] = orjson.loads(b"{%bnull}" % before)
            except ValueError:
                raise self._invalid("a name is missing", container.begin) from None
        elif before.strip(_SPACE):
            raise self._invalid("unexpected character", container.begin)
        container.begin, container.comma = at, -1

    def _add(self, container: _Container, value: Any, end: int) -> None:
        """Adds a member that was read separately, and that ends at `end`, to a container."""
        if container.is_object:
            container.value[container.name] = value
        else:
            container.value.append(value)
        container.name = None
        container.filled = True
        container.begin, container.comma = end, -1

    # --- strings

    def _string(self, at: int) -> int:
        """Returns the end after the quote of the string at an offset, which it adds to its container if it is long."""
        data, stack = self._data, self._stack
        end = data.find(b'"', at + 1, at + PIECE_BYTES)
        if end >= 0 and data[end - 1] != 0x5C:
            return self._after_string(end)
        cuts = [at + 1]
        while True:
            cut = self._cut(cuts[-1])
            cuts.append(cut)
            if data[cut] == 0x22:
                break
        if cut - at <= PIECE_BYTES:
            return self._after_string(cut)
        if not stack:
            if data[self._start : at].strip(_SPACE):
                raise self._invalid("unexpected character", 0)
            self._result, self._end = self._text(cuts), cut + 1
            return cut + 1
        if stack[-1].is_object and _COLON.match(data, cut + 1):
            raise self._invalid("a name is too long", at)
        self._flush(at)
        self._name_member(stack[-1], at)
        self._add(stack[-1], self._text(cuts), cut + 1)
        self._read = cut + 1
        return cut + 1

    def _after_string(self, end: int) -> int:
        if not self._stack:  # a text alone
            try:
                self._result, self._end = orjson.loads(self._data[self._start : end + 1]), end + 1
            except orjson.JSONDecodeError as error:
                raise self._invalid(error.msg, 0) from None
        return end + 1

    def _cut(self, at: int) -> int:
        """Returns the offset of a string's closing quote, or one up to a slice ahead at which it can be cut."""
        data, stop = self._data, at + SLICE_BYTES
        quote = data.find(b'"', at, stop)
        if data.find(b"\\", at, quote if quote >= 0 else stop) < 0:
            end = quote if quote >= 0 else stop
        else:
            match = _ESCAPED.match(data, at, min(stop, at + ESCAPED_SLICE_BYTES))
            end = match.end() if match else at
        if end >= len(data):
            raise self._invalid("the data ends early", len(data))
        if data[end] != 0x22:
            while end > at and data[end] & 0xC0 == 0x80:  # in the middle of a character
                end -= 1
            if end == at:
                raise self._invalid("unexpected character", at)
        return end

    def _text(self, cuts: list[int]) -> str:
        text = ""
        limit = MAX_TEXT_CHARS
        is_data = True
        for start, end in pairwise(cuts):
            piece = self._data[start:end]
            if is_data:
                is_data = not piece[_prefix(piece) if start == cuts[0] else 0 :].translate(None, _BASE64)
            plain = is_data and b"\\" not in piece
            part = piece.decode("ascii") if plain else self._parse_text(piece, start)
            text += part  # CPython appends in place while this is the only reference; a join would be one call for all
            if not part.isascii():
                limit = MAX_WIDE_TEXT_CHARS
            if len(text) > limit and not is_data:
                raise TextTooLong(f"a string has more than {limit} characters near byte {cuts[0]}")
        return text

    def _parse_text(self, piece: bytes, at: int) -> str:
        try:
            text: str = orjson.loads(b'"%b"' % piece)
        except orjson.JSONDecodeError as error:
            raise self._invalid(error.msg, at) from None
        return text

    def _invalid(self, what: str, at: int) -> ValueError:
        return ValueError(f"{what.partition(': line')[0]}: near byte {at}")


def _prefix(piece: bytes) -> int:
    """Returns the length of the prefix of a data URL."""
    match = _DATA_URL.match(piece)
    return match.end() if match else 0
