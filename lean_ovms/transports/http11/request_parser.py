"""Parses bytes into requests, by HTTP's grammar and the size limits. It knows no sockets, clocks or responses.

h11 parses heads, where a lenient parser would let requests be smuggled past a proxy. Only a head that cannot be
interpreted in two ways is parsed here (parse_simple_head): in 8 us instead of h11's 28, and of five times that if h11's
functions are not in the processor's caches, as is usual for a single request (measured 2026-11). Limits are checked,
and bodies read, on a buffer of this module: h11 checks its size limit only while it waits for more, so the result would
depend on how the bytes were divided, and 250 KB of trailers in one read would hold the loop for a quarter of a second.

The rule of this module: for any bytes in any division, `read` returns requests or raises RequestError, always the same.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from urllib.parse import unquote_to_bytes

import h11

from ...errors import BadRequest, HeadersTooLarge, PayloadTooLarge, RequestError
from ...types import Request
from ..cycle import RequestBody, request_headers

MAX_HEADER_LINES = 256
"""The most header lines (Apache: 100), 1.4 us of h11 each: 64 KiB of the shortest would hold the loop for 23 ms."""

MAX_CHUNKS_PER_READ = 256
"""The chunks after which `read` lets other connections run; a small one takes 4 us (2026-11)."""

LARGE_BODY_BYTES = 262_144
"""The bytes from which bodies get a separate buffer, since copying 30 MB would hold the loop for 25 ms."""

_HEAD_END = re.compile(rb"\n\r?\n")
_BAD_ESCAPE = re.compile(r"%(?![0-9A-Fa-f]{2})")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_SIMPLE_HEAD = re.compile(
    r"([A-Z]+) (/[!-~]*) HTTP/1\.1\r\n((?:[-!#$%&'*+.^_`|~0-9A-Za-z]+:[\t -~\x80-\xff]*\r\n)+)\r\n"
)
"""Matches a head that can be read in one way only, without backtracking: no class contains the next one's start."""
_CHUNK_SIZE = re.compile(rb"([0-9A-Fa-f]{1,20})(?:;[\t -~\x80-\xff]*|[ \t]*)\r\n")
"""Matches the line before the data of a chunk (RFC 9112 7.1), whose extensions are ignored, without backtracking."""
_TRAILERS = re.compile(rb"(?:[-!#$%&'*+.^_`|~0-9A-Za-z]+:[\t -~\x80-\xff]*\r\n)*\r\n")
_SIMPLE_LENGTH = re.compile(r"[0-9]{1,15}")
_ABSOLUTE = re.compile(r"https?://(?!:)([^/#@]+)(/.*)?", re.IGNORECASE)


def tokens(value: str) -> set[str]:
    """Returns the members of a comma-separated header value in lower case."""
    return {part.strip() for part in value.lower().split(",")}


@dataclass(slots=True)
class RequestHead:
    """The head of a request. It does not change once it is read."""

    method: str
    """The method."""
    path: str
    """The decoded path."""
    query: str
    """The query as it was sent, without the question mark."""
    headers: dict[str, str]
    """The headers by their names in lower case; repeated ones are joined."""
    length: int | None
    """The length of the body in bytes; None if it is chunked."""
    http_1_1: bool
    """Whether the version is HTTP/1.1, not 1.0."""

    @property
    def keep_alive(self) -> bool:
        """Whether the client may send another request; with HTTP/1.0 only if it asks for that (RFC 9112 9.3)."""
        connection = self.headers.get("connection")
        if connection is None:
            return self.http_1_1
        options = tokens(connection)
        return "close" not in options and (self.http_1_1 or "keep-alive" in options)

    @property
    def expects_continue(self) -> bool:
        """Whether the client may wait for 100 Continue before it sends the body."""
        return self.http_1_1 and self.length != 0 and "100-continue" in tokens(self.headers.get("expect", ""))


class HttpRequestParser:
    """Parses the bytes of one connection into requests, until `read` has raised an error."""

    def __init__(self, max_header_bytes: int, max_body_bytes: int, peer: str = "") -> None:
        self._max_header_bytes = max_header_bytes
        self._max_body_bytes = max_body_bytes
        self._peer = peer
        self.buffer = bytearray()  # fed and not parsed yet
        # of the request that is being read
        self.head: RequestHead | None = None
        """The head of the request whose body is being read."""
        self.body_started = False
        """Whether a part of the body arrived together with the head."""
        self.has_more = False
        """Whether `read` stopped early, and should be called again without new bytes."""
        self.check_head: Callable[[RequestHead], None] | None = None
        """Raises RequestError for a request whose body must not be read."""
        self._searched = 0
        self._body = RequestBody()
        self._missing = 0  # bytes of a large body or a chunk, which are written to _body as they come
        self._chunk_end = b""  # what ends the data of the last chunk
        self._last_chunk = False  # whether only the trailers are missing

    def feed(self, data: bytes) -> None:
        """Appends bytes received from the peer."""
        if self._missing:
            with memoryview(data) as view:
                written = self._body.write(view[: self._missing])
                self._missing -= written
                self.buffer += view[written:]
        else:
            self.buffer += data

    def discard(self) -> None:
        """Frees all buffers; nothing more will be read."""
        self.buffer.clear()
        self._body.close()
        self._body, self._missing = RequestBody(), 0

    def take_buffer(self) -> bytes:
        """Returns the received bytes that have not been parsed, and removes them."""
        rest = bytes(self.buffer)
        self.buffer.clear()
        return rest

    @property
    def memory_bytes(self) -> int:
        """The memory in bytes that unfinished and pipelined requests take."""
        return len(self.buffer) + self._body.tell()

    def read(self) -> tuple[RequestHead, Request] | None:
        """Returns the next complete request with its head; None if bytes are missing. Raises RequestError."""
        if self.head is None:
            self._read_head()
        if self.head is None:
            return None
        body = self._read_body(self.head.length) if self.head.length is not None else self._read_chunks()
        if body is None:
            return None
        head, self.head = self.head, None
        request = Request(head.method, head.path, head.query, head.headers, b"", self._peer)
        if isinstance(body, bytes):
            request.body = body
        else:
            body.into(request)
        return head, request

    # The head is cut out of the buffer by the same pattern that h11 uses, so h11 always gets a complete one.

    def _read_head(self) -> None:
        end = self._find_head_end()
        if end == 0:
            return
        raw = bytes(self.buffer[:end])
        del self.buffer[:end]
        self._searched = 0
        if raw.count(b"\n") > MAX_HEADER_LINES:
            raise HeadersTooLarge(f"the request has more than {MAX_HEADER_LINES} header lines")
        head = parse_simple_head(raw) or parse_with_h11(raw)
        if head.length is not None and head.length > self._max_body_bytes:
            raise self._too_large(head)
        self.head = head
        if head.length is None or head.length > LARGE_BODY_BYTES:
            expected = self._max_body_bytes if head.length is None else head.length
            self._body = RequestBody(head.headers, expected)
        if self.check_head is not None:
            self.check_head(head)
        self.body_started = bool(self.buffer)

    def _find_head_end(self) -> int:
        """Returns the length of the head; 0 while it is incomplete."""
        buffer = self.buffer
        if buffer.startswith((b"\r", b"\n")):  # RFC 9112 2.2: ignore empty lines before a request
            buffer[:] = buffer.lstrip(b"\r\n")
        if not buffer:
            return 0
        if buffer[0] < 0x21:  # a TLS ClientHello begins with 0x16, and its blank line would never come
            raise BadRequest("malformed HTTP request: this port speaks plain HTTP/1.1")
        match = _HEAD_END.search(buffer, self._searched)
        end = match.end() if match else 0
        if end > self._max_header_bytes or (not end and len(buffer) > self._max_header_bytes):
            raise HeadersTooLarge(f"the request line and headers exceed {self._max_header_bytes} bytes")
        self._searched = max(0, len(buffer) - 2)
        return end

    def _read_body(self, length: int) -> bytes | RequestBody | None:
        if length > LARGE_BODY_BYTES:
            return self._read_large_body(length)
        if len(self.buffer) < length:
            return None
        with memoryview(self.buffer) as view:
            body = bytes(view[:length])
        del self.buffer[:length]
        return body

    def _read_large_body(self, length: int) -> RequestBody | None:
        """Reads a large body into a separate buffer, which becomes the body without being copied, or into a file."""
        if not self._missing and not self._body.tell():
            with memoryview(self.buffer) as view:
                self._missing = length - self._body.write(view[:length])
            del self.buffer[:length]
        self._body.check()
        return None if self._missing else self._take_body()

    def _take_body(self) -> RequestBody:
        body, self._body = self._body, RequestBody()
        return body

    def _read_chunks(self) -> RequestBody | None:
        self.has_more = False
        for _ in range(MAX_CHUNKS_PER_READ):
            self._body.check()
            if self._missing:
                return None
            if self._last_chunk:
                return self._read_trailers()
            size = self._read_chunk_size()
            if size is None:
                return None
            with memoryview(self.buffer) as view:
                written = self._body.write(view[:size])
            del self.buffer[:written]
            self._missing = size - written
            self._chunk_end, self._last_chunk = b"\r\n", not size
        self.has_more = True
        return None

    def _read_chunk_size(self) -> int | None:
        """Removes the line with the size of the next chunk, and the end of the chunk before it; returns the size."""
        start = len(self._chunk_end)
        end = self._find_line_end(b"\r\n", start)
        if not end:
            return None
        line = _CHUNK_SIZE.fullmatch(self.buffer, start, end)
        if line is None or not self.buffer.startswith(self._chunk_end):
            raise _malformed("illegal chunk header")
        size = int(line[1], 16)
        if self._body.tell() + size > self._max_body_bytes:
            assert self.head is not None
            raise self._too_large(self.head)
        del self.buffer[:end]
        return size

    def _read_trailers(self) -> RequestBody | None:
        """Removes the trailers, which nothing here uses; returns the body."""
        end = 2 if self.buffer.startswith(b"\r\n") else self._find_line_end(b"\r\n\r\n")
        if not end:
            return None
        if not _TRAILERS.fullmatch(self.buffer, 0, end):
            raise _malformed("illegal trailer line")
        del self.buffer[:end]
        self._searched, self._chunk_end, self._last_chunk = 0, b"", False
        return self._take_body()

    def _find_line_end(self, mark: bytes, start: int = 0) -> int:
        """Returns the offset in the buffer after the first `mark` from `start` on; 0 while it is missing."""
        found = self.buffer.find(mark, max(start, self._searched))
        end = found + len(mark) if found >= 0 else 0
        if (end or len(self.buffer)) > self._max_header_bytes:
            raise HeadersTooLarge("the chunk header or the trailers are too long")
        self._searched = 0 if end else max(0, len(self.buffer) - len(mark) + 1)
        return end

    def _too_large(self, head: RequestHead) -> RequestError:
        self.head = head  # so that the response to a HEAD request has no body here either
        return PayloadTooLarge(f"the request body exceeds {self._max_body_bytes} bytes")


def parse_simple_head(raw: bytes) -> RequestHead | None:
    """Parses a head in the usual form; returns None for any other.

    The usual form has HTTP/1.1, one Host, at most one Content-Length, and no Transfer-Encoding. Raises BadRequest.
    Tests compare the result with parse_with_h11.
    """
    match = _SIMPLE_HEAD.fullmatch(raw.decode("latin-1"))
    if match is None:
        return None
    method, target, lines = match.groups()
    pairs = [line.partition(":") for line in lines.split("\r\n")[:-1]]
    headers = {name.lower(): value.strip(" \t") for name, _, value in pairs}
    if len(headers) < len(pairs) and not _join_repeated(headers, pairs):
        return None
    length = headers.get("content-length", "0")
    if "host" not in headers or "transfer-encoding" in headers or not _SIMPLE_LENGTH.fullmatch(length):
        return None
    path, _, query = target.partition("?")
    return RequestHead(method, _decode_path(path), query, headers, int(length), True)


_SINGLE = ("host", "content-length")


def _join_repeated(headers: dict[str, str], pairs: Iterable[tuple[str, str, str]]) -> bool:
    """Joins the values of repeated headers in `headers`; returns False if a header that must be unique is repeated."""
    values: dict[str, list[str]] = {}
    for name, _, value in pairs:
        values.setdefault(name.lower(), []).append(value.strip(" \t"))
    headers.update((name, ", ".join(several)) for name, several in values.items())
    return all(len(values.get(name, "x")) == 1 for name in _SINGLE)


def _malformed(what: str, status: int = 400) -> BadRequest:
    """Returns the error for a request that cannot be parsed; its status is 501 or 505 for what is not supported."""
    return BadRequest(f"malformed HTTP request: {what}", status=status)


def parse_with_h11(raw: bytes) -> RequestHead:
    """Parses a complete head with h11. Raises BadRequest."""
    connection = h11.Connection(h11.SERVER)
    connection.receive_data(raw)
    try:
        event = connection.next_event()
    except h11.RemoteProtocolError as error:
        # h11 appends the offending bytes; the client has them already
        raise _malformed(str(error).partition(": b")[0], error.error_status_hint) from None
    assert isinstance(event, h11.Request)
    return _head_from_h11(event)


def _head_from_h11(event: h11.Request) -> RequestHead:
    """Converts h11's request to a head. Raises BadRequest for some requests that h11 accepts."""
    headers = request_headers(event.headers)
    if not event.http_version.startswith(b"1."):
        raise _malformed("only HTTP/1.0 and HTTP/1.1 are supported", 505)
    http_1_1 = event.http_version != b"1.0"
    chunked = "transfer-encoding" in headers
    # RFC 9112 6.1: either may be an attempt at request smuggling, and no proper client sends it
    if chunked and ("content-length" in headers or not http_1_1):
        raise _malformed("Transfer-Encoding must not be combined with Content-Length or HTTP/1.0")
    length = None if chunked else int(headers.get("content-length", "0"))
    target, _, query = event.target.decode("ascii").partition("?")
    if absolute := _ABSOLUTE.fullmatch(target):
        headers["host"], target = absolute[1], absolute[2] or "/"  # the header is ignored then (RFC 9112 3.2.2)
    return RequestHead(event.method.decode("ascii"), _decode_path(target), query, headers, length, http_1_1)


def _decode_path(target: str) -> str:
    """Returns the decoded path of a request target in origin or asterisk form (RFC 9112 3.2)."""
    if not target.startswith("/") and target != "*":
        raise _malformed("invalid request target")
    if "%" not in target:
        return target
    if _BAD_ESCAPE.search(target):
        raise _malformed("invalid percent encoding in the path")
    try:
        path = unquote_to_bytes(target).decode("utf-8")
    except UnicodeDecodeError:
        raise _malformed("the path is not UTF-8") from None
    if _CONTROL.search(path):
        raise _malformed("the path contains a control character")
    return path
