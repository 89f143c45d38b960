"""A request's body while it arrives: in memory, or, a large form, in a file that the reader of its file gets."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from io import BytesIO

from ..errors import Unavailable
from ..types import Request
from ..util.spool import Spool

log = logging.getLogger("lean_ovms.transports")

SPOOLED_FROM = 262_144
"""Bytes of a form from which on it is in a file."""


class RequestBody:
    """headers: of the request, in lower case. tell: how many bytes have been written."""

    def __init__(self, headers: Mapping[str, str]) -> None:
        self._form = headers.get("content-type", "").lower().lstrip().startswith("multipart/form-data")
        self._memory = BytesIO()
        self._spool: Spool | None = None
        self._failed = False

    def write(self, data: bytes | bytearray | memoryview) -> int:
        """Append; returns how much it was. A failure is raised by `check`."""
        with memoryview(data) as view:
            if self._spool is not None:
                self._append(view)
            else:
                self._memory.write(view)
                if self._form and self._memory.tell() > SPOOLED_FROM:
                    self._move()
            return len(view)

    def tell(self) -> int:
        return self._memory.tell() if self._spool is None else self._spool.size

    def _move(self) -> None:
        try:
            self._spool = Spool()
        except OSError as error:  # too many open files: it stays in memory
            log.warning(
                "a large form is kept in memory: %s", str(error)
            )  # not its traceback, which holds the caller's buffer
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
            request.body = self._memory.getvalue()
        else:
            request.spool = self._spool
        return request

    def close(self) -> None:
        """Free it: it becomes no request's."""
        self._memory = BytesIO()
        if self._spool is not None:
            self._spool.close()
