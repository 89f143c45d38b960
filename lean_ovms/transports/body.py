"""A request's body while it arrives: in memory, or, a large form, in a file that the reader of its file gets."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from io import BytesIO

from ..errors import Unavailable
from ..types import Request
from ..util.memory import reserve
from ..util.spool import Spool

log = logging.getLogger("lean_ovms.transports")

FORM = "multipart/form-data"
SPOOLED_FROM = 262_144
"""Bytes of a form from which on it is in a file."""
GROWING_BODY_BYTES, RESERVED_BODY_BYTES = 1 << 19, 64 << 20
"""A body of more bytes gets all its memory at once, up to so many: growing a block may copy it. The pages are taken
from the system as they are written, so that a client that announces a large body and sends little takes little."""


class RequestBody:
    """A body that is being received. tell: how many bytes have been written."""

    def __init__(self, headers: Mapping[str, str] | None = None, expected: int = 0) -> None:
        """Makes an empty body. headers: of the request, in lower case. expected: roughly the bytes that it will
        have."""
        self._form = (headers or {}).get("content-type", "").lower().lstrip().startswith(FORM)
        self._expected = expected
        self._memory = BytesIO()
        self._spool: Spool | None = None
        self._failed = False

    def write(self, data: bytes | bytearray | memoryview) -> int:
        """Appends bytes. Returns how many there were. A failure is raised by `check`."""
        with memoryview(data) as view:
            if self._form and self._spool is None and self._memory.tell() + len(view) > SPOOLED_FROM:
                self._move()
            if self._spool is not None:
                self._append(view)
            else:
                self._keep(view)
            return len(view)

    def _keep(self, view: memoryview) -> None:
        size = self._memory.tell()
        if size <= GROWING_BODY_BYTES < size + len(view):
            whole = reserve(min(max(self._expected, size + len(view)), RESERVED_BODY_BYTES))
            with self._memory.getbuffer() as written:
                whole.write(written[:size])
            self._memory = whole
        self._memory.write(view)

    def tell(self) -> int:
        return self._memory.tell() if self._spool is None else self._spool.size

    def _move(self) -> None:
        try:
            self._spool = Spool()
        except OSError as error:  # too many open files: it stays in memory
            # Not its traceback, which holds the caller's buffer.
            log.warning("a large form is kept in memory: %s", str(error))
            self._form = False
            return
        with self._memory.getbuffer() as view:
            self._append(view)
        self._memory = BytesIO()

    def _append(self, view: memoryview) -> None:
        assert self._spool is not None
        try:
            if not self._failed:
                self._spool.write(view)
        except OSError as error:
            log.error("a large form cannot be stored: %s", str(error))
            self._failed = True

    def check(self) -> None:
        """Raises Unavailable if something could not be stored."""
        if self._failed:
            raise Unavailable("no room for this request's body", code="too_many_large_requests")

    def into(self, request: Request) -> Request:
        """Make it the body of this request. Raises as `check`."""
        self.check()
        if self._spool is None:
            request.body = self.getvalue()
        else:
            request.spool = self._spool
        return request

    def getvalue(self) -> bytes:
        """Returns what is in memory, without a copy."""
        self._memory.truncate()
        return self._memory.getvalue()

    def close(self) -> None:
        """Free it: it becomes no request's."""
        self._memory = BytesIO()
        if self._spool is not None:
            self._spool.close()
