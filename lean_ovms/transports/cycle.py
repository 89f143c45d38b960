"""One request and its response, the same for every transport: call the handler, send, close exactly once.

The transport contract, to which tests/transports holds every transport: the handler runs in a task of its own; when the
client leaves, that task is cancelled; whatever happened, the response is closed exactly once.

This is where a bug in the handler or in a body ends: it is logged, and the client gets a 500 or a broken-off body.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable

from ..errors import InternalError, RequestError, error_response
from ..types import Handle, Request, Response

log = logging.getLogger("lean_ovms.transports")

FRAMING_HEADERS = frozenset({"content-length", "transfer-encoding", "connection"})
"""How a body ends, and whether the connection does, is decided by the transport; the response's own are dropped."""


def request_headers(pairs: Iterable[tuple[bytes, bytes]]) -> dict[str, str]:
    """Returns the headers of a request as Request has them: with lower-case names, the values of equal ones joined."""
    headers: dict[str, str] = {}
    for raw_name, raw_value in pairs:
        name, value = raw_name.decode("latin-1").lower(), raw_value.decode("latin-1")
        headers[name] = f"{headers[name]}, {value}" if name in headers else value
    return headers


class RequestResponseCycle:
    """Base of a transport's cycle, which implements `send` and `send_failure`. Cancel it through `cancel`.

    cancelled: the client has left, or the transport shuts down.
    """

    def __init__(self, handle: Handle, error_response: Callable[[RequestError], Response] = error_response) -> None:
        """Keeps what answers. error_response: returns the response for an error, in the form that the client reads."""
        self.cancelled = False
        self.error_response = error_response
        self._handle = handle
        self._task: asyncio.Task[None] | None = None
        self._closing = False

    async def send(self, response: Response) -> None:
        """Send a response; returns early when `cancelled` is set."""
        raise NotImplementedError

    async def send_failure(self) -> None:
        """Make the failure visible: a 500, or, once the head is out, a body that visibly does not end."""
        raise NotImplementedError

    def start(self, loop: asyncio.AbstractEventLoop, request: Request) -> asyncio.Task[None]:
        """Answer the request in a task, which raises what `send_failure` raises, or CancelledError."""
        self._task = loop.create_task(self._run(request))
        return self._task

    def cancel(self) -> None:
        """Stop, once: a second cancellation would interrupt the cleaning up after the first."""
        if not self.cancelled and not self._closing and self._task is not None:
            self._task.cancel()
        self.cancelled = True

    async def _run(self, request: Request) -> None:
        try:
            response = await self._call(request)
        finally:
            if request.spool is not None:
                request.spool.close()
        del request  # a stream may be long
        try:
            if not self.cancelled:  # else the handler answered although it was cancelled
                await self.send(response)
        except asyncio.CancelledError:
            if self.cancelled:
                raise
            await self._fail("the response was cancelled from within")
        except Exception:
            await self._fail("the response failed")
        finally:
            self._closing = True  # from here on a cancellation would leak what the response holds
            await _close(response)

    async def _call(self, request: Request) -> Response:
        """Returns the handler's response, or the one for its error."""
        try:
            return await self._handle(request)
        except RequestError as error:
            return self.error_response(error)
        except asyncio.CancelledError:
            if self.cancelled:
                raise
            log.exception("the handler was cancelled from within")
        except Exception:
            log.exception("the handler failed")
        return self.error_response(InternalError())

    async def _fail(self, message: str) -> None:
        log.exception(message)
        await self.send_failure()


async def _close(response: Response) -> None:
    try:
        await response.aclose()
    except Exception:
        log.exception("closing a response failed")
