"""Requests out of bytes. Knows HTTP's grammar and the size limits; must not know sockets, clocks or answers.

h11 judges the head and the chunked framing, where a lenient reading lets requests be smuggled past a proxy. Only a head
that is beyond doubt is read here (_beyond_doubt): h11 takes 28 us for what this takes 8, and five times that when its
many functions are not in the processor's caches, which is how a request finds them (measured 2026-11). The rest
is taken from our own buffer: h11 checks its size limit only while it waits for more, so there the outcome would depend
on how the bytes were cut, and a body with Content-Length need not be copied through it.

The rule of this file: fed any bytes in any cut, `read` returns requests or raises RequestError, nothing else, and the
same ones for every cut.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from urllib.parse import unquote_to_bytes

import h11

from ...errors import BadRequest, HeadersTooLarge, PayloadTooLarge, RequestError
from ...types import Request
from .response_head import tokens

MAX_HEADER_LINES = 256
"""More is a 431 (Apache allows 100). h11 takes 1.4 us a line: 64 KiB of the shortest would hold the loop 23 ms."""

MAX_CHUNKS_PER_READ = 512
"""A chunk costs h11 5.5 us whatever its size (2026-11); after so many, others get their turn (one-byte chunks)."""

_HEAD_END = re.compile(rb"\n\r?\n")
_BAD_ESCAPE = re.compile(r"%(?![0-9A-Fa-f]{2})")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_PLAIN_HEAD = re.compile(
    r"([A-Z]+) (/[!-~]*) HTTP/1\.1\r\n((?:[-!#$%&'*+.^_`|~0-9A-Za-z]+:[\t -~\x80-\xff]*\r\n)+)\r\n"
)
"""Nothing in it can be read in two ways; each class ends where the next character begins: no backtracking."""
_PLAIN_LENGTH = re.compile(r"[0-9]{1,15}")
_ABSOLUTE = re.compile(r"https?://[^/?#]*", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Head:
    """What is known of a request before its body. length: of the body, None when it comes in chunks."""

    method: str
    path: str
    query: str
    headers: dict[str, str]
    length: int | None
    http_1_1: bool

    @property
    def keep_alive(self) -> bool:
        """Whether the client would send another request. HTTP/1.0 would need to ask for it, and is not offered it."""
        return self.http_1_1 and "close" not in tokens(self.headers.get("connection", ""))

    @property
    def expects_continue(self) -> bool:
        """Whether the client may wait for 100 Continue before it sends the body."""
        return self.http_1_1 and self.length != 0 and "100-continue" in tokens(self.headers.get("expect", ""))


class Reader:
    """One connection's bytes to requests, in order. After it raised, nothing more can be read from it."""

    def __init__(self, max_header_bytes: int, max_body_bytes: int, peer: str = "") -> None:
        self._max_header_bytes = max_header_bytes
        self._max_body_bytes = max_body_bytes
        self._peer = peer
        self._buffer = bytearray()
        # of the request that is being read
        self.head: Head | None = None
        self.body_begun = False  # some of the body came together with the head
        self.unfinished = False  # read() stopped early: call it again, there is more to do without new bytes
        self._searched = 0
        self._chunks: h11.Connection | None = None
        self._parts: list[bytes] = []
        self._size = 0

    def feed(self, data: bytes) -> None:
        """More bytes from the peer; `read` looks at them."""
        self._buffer += data

    def drop(self) -> None:
        """Free what was fed; nothing more will be read."""
        self._buffer.clear()
        self._chunks, self._parts, self._size = None, [], 0

    @property
    def buffered(self) -> int:
        """Bytes fed and not yet looked at."""
        return len(self._buffer)

    @property
    def held(self) -> int:
        """Bytes of memory that the peer makes us hold, to within the parser's own."""
        return len(self._buffer) + self._size

    def read(self) -> tuple[Head, Request] | None:
        """The next whole request with its head, or None when bytes are missing. Raises RequestError."""
        if self.head is None:
            self._read_head()
        if self.head is None:
            return None
        body = self._read_sized(self.head.length) if self.head.length is not None else self._read_chunks()
        if body is None:
            return None
        head, self.head = self.head, None
        return head, Request(head.method, head.path, head.query, head.headers, body, self._peer)

    # The head is cut out of the buffer by the same pattern that h11 uses, so h11 always sees a complete one.

    def _read_head(self) -> None:
        end = self._find_head_end()
        if end == 0:
            return
        raw = bytes(self._buffer[:end])
        del self._buffer[:end]
        self._searched = 0
        if raw.count(b"\n") > MAX_HEADER_LINES:
            raise HeadersTooLarge(f"more than {MAX_HEADER_LINES} header lines")
        head = _beyond_doubt(raw)
        machine = None
        if head is None:
            machine = h11.Connection(h11.SERVER, self._max_header_bytes)
            machine.receive_data(raw)
            event = _next_event(machine)
            assert isinstance(event, h11.Request)
            head = _judge(event)
        if head.length is not None and head.length > self._max_body_bytes:
            raise self._too_large(head)
        self.head = head
        self.body_begun = bool(self._buffer)
        if head.length is None:
            self._chunks = machine

    def _find_head_end(self) -> int:
        """Where the head ends, 0 when it is not there yet."""
        buffer = self._buffer
        if buffer.startswith((b"\r", b"\n")):  # RFC 9112 2.2: ignore empty lines before a request
            buffer[:] = buffer.lstrip(b"\r\n")
        if not buffer:
            return 0
        if buffer[0] < 0x21:  # a TLS ClientHello begins with 0x16; waiting for its blank line would be for ever
            raise BadRequest("malformed HTTP request: this port speaks plain HTTP/1.1")
        match = _HEAD_END.search(buffer, self._searched)
        end = match.end() if match else 0
        if end > self._max_header_bytes or (not end and len(buffer) > self._max_header_bytes):
            raise HeadersTooLarge(f"request line and headers exceed {self._max_header_bytes} bytes")
        self._searched = max(0, len(buffer) - 2)
        return end

    def _read_sized(self, length: int) -> bytes | None:
        if len(self._buffer) < length:
            return None
        with memoryview(self._buffer) as view:
            body = bytes(view[:length])
        del self._buffer[:length]
        return body

    def _read_chunks(self) -> bytes | None:
        machine = self._chunks
        assert machine is not None
        if self._buffer:  # b"" would mean end of file
            machine.receive_data(bytes(self._buffer))
            self._buffer.clear()
        self.unfinished = False
        for _ in range(MAX_CHUNKS_PER_READ):
            event = _next_event(machine)
            if isinstance(event, h11.EndOfMessage):
                self._buffer += machine.trailing_data[0]
                body = b"".join(self._parts)
                self._chunks, self._parts, self._size = None, [], 0
                return body
            if not isinstance(event, h11.Data):
                return None
            self._add_chunk(event.data)
        self.unfinished = True
        return None

    def _add_chunk(self, data: bytes) -> None:
        self._size += len(data)
        if self._size > self._max_body_bytes:
            assert self.head is not None
            raise self._too_large(self.head)
        self._parts.append(data)

    def _too_large(self, head: Head) -> RequestError:
        self.head = head  # so that the answer to a HEAD request has no body here either
        return PayloadTooLarge(f"request body exceeds {self._max_body_bytes} bytes")


def _beyond_doubt(raw: bytes) -> Head | None:
    """A head as everybody writes it: HTTP/1.1, one Host, at most one Content-Length, no Transfer-Encoding. Else None,
    and h11 looks at it; tests hold that it would have come to the same."""
    match = _PLAIN_HEAD.fullmatch(raw.decode("latin-1"))
    if match is None:
        return None
    method, target, lines = match.groups()
    headers: dict[str, str] = {}
    for line in lines.split("\r\n")[:-1]:
        name, _, value = line.partition(":")
        name, value = name.lower(), value.strip(" \t")
        if name in headers:
            if name in _SINGLE:
                return None
            value = f"{headers[name]}, {value}"
        headers[name] = value
    length = headers.get("content-length", "0")
    if "host" not in headers or "transfer-encoding" in headers or not _PLAIN_LENGTH.fullmatch(length):
        return None
    path, _, query = target.partition("?")
    return Head(method, _path(path), query, headers, int(length), True)


_SINGLE = ("host", "content-length")


def _next_event(machine: h11.Connection) -> h11.Event | type[h11.NEED_DATA] | type[h11.PAUSED]:
    try:
        return machine.next_event()
    except h11.RemoteProtocolError as error:
        if error.error_status_hint == 431:
            raise HeadersTooLarge("chunk header or trailers are too long") from None
        # h11 appends the offending bytes after a colon; the client has them already
        raise _refusal(str(error).partition(":")[0], error.error_status_hint) from None


def _refusal(what: str, status: int = 400) -> BadRequest:
    """A request that is not understood. status: 501 and 505 say which part of HTTP we do not speak."""
    return BadRequest(f"malformed HTTP request: {what}", status=status)


def _judge(event: h11.Request) -> Head:
    """What h11 lets pass and we do not, then the request in our words."""
    headers = _join(event.headers)
    if not event.http_version.startswith(b"1."):
        raise _refusal("only HTTP/1.0 and HTTP/1.1 are spoken here", 505)
    http_1_1 = event.http_version != b"1.0"
    chunked = "transfer-encoding" in headers
    # RFC 9112 6.1: either may be an attempt at smuggling, and no honest client sends it
    if chunked and ("content-length" in headers or not http_1_1):
        raise _refusal("Transfer-Encoding with Content-Length or HTTP/1.0")
    length = None if chunked else int(headers.get("content-length", "0"))
    target, _, query = event.target.decode("ascii").partition("?")
    return Head(event.method.decode("ascii"), _path(target), query, headers, length, http_1_1)


def _join(pairs: Iterable[tuple[bytes, bytes]]) -> dict[str, str]:
    headers: dict[str, str] = {}
    for raw_name, raw_value in pairs:
        name, value = raw_name.decode("latin-1"), raw_value.decode("latin-1")
        headers[name] = f"{headers[name]}, {value}" if name in headers else value
    return headers


def _path(target: str) -> str:
    """The decoded path of a request target in origin, absolute or asterisk form (RFC 9112 3.2)."""
    if not target.startswith("/") and target != "*":
        absolute = _ABSOLUTE.match(target)
        if not absolute:
            raise _refusal("request target")
        target = target[absolute.end() :] or "/"
    if "%" not in target:
        return target
    if _BAD_ESCAPE.search(target):
        raise _refusal("percent encoding in the path")
    try:
        path = unquote_to_bytes(target).decode("utf-8")
    except UnicodeDecodeError:
        raise _refusal("the path is not UTF-8") from None
    if _CONTROL.search(path):
        raise _refusal("control character in the path")
    return path
