"""One request being answered: asks the handler, sends its answer, and closes the answer exactly once.

Knows a Session to frame with and an Outflow to send through; must not know transports or what becomes of the
connection afterwards.
"""

from __future__ import annotations

import asyncio
import logging

from ...errors import InternalError, RequestError
from ...types import Handle, Request, Response
from .protocol import Session
from .writer import Writer

log = logging.getLogger("lean_ovms.wire")


class Exchange:
    """Run it as a task; cancel it through `cancel`, never the task itself.

    head_sent: some of the answer is out. gone: nobody waits for the answer any more.
    """

    def __init__(self, handle: Handle, session: Session, out: Writer) -> None:
        self.head_sent = False
        self.gone = False
        self._handle = handle
        self._session = session
        self._out = out
        self._task: asyncio.Task[None] | None = None
        self._releasing = False

    def begin(self, loop: asyncio.AbstractEventLoop, request: Request) -> asyncio.Task[None]:
        """Start answering; the task raises nothing but CancelledError."""
        self._task = loop.create_task(self._run(request))
        return self._task

    def cancel(self) -> None:
        """Stop, once: a second cancellation would interrupt the cleaning up after the first."""
        if not self.gone and not self._releasing and self._task is not None:
            self._task.cancel()
        self.gone = True

    async def _run(self, request: Request) -> None:
        response = await self._ask(request)
        del request  # its body may be large, and a stream may be long
        try:
            if not self.gone:  # else the handler answered although it was cancelled
                await self._send(response)
        except asyncio.CancelledError:
            if self.gone:
                raise
            self._fail("the response was cancelled from within")
        except Exception:
            self._fail("the response failed")
        finally:
            # A departure has nothing left to cancel from here on; interrupting this would leak what it releases.
            self._releasing = True
            await _release(response)

    async def _ask(self, request: Request) -> Response:
        """The handler's answer. The border where its bugs end: they are logged and become a 500."""
        try:
            return await self._handle(request)
        except RequestError as error:
            return self._session.error(error)
        except asyncio.CancelledError:
            if self.gone:
                raise
            log.exception("the handler was cancelled from within")
        except Exception:
            log.exception("the handler failed")
        return self._session.error(InternalError())

    async def _send(self, response: Response) -> None:
        session, out, body = self._session, self._out, response.body
        pending = session.start(response)
        if session.streams and not isinstance(body, bytes):
            # The head leaves together with the first piece: one packet, and an early failure can still be a 500.
            async for data in body:
                if self.gone:
                    return
                if data:
                    self._write(pending + session.chunk(data))
                    pending = b""
                    if out.full is not None:  # asked first: a coroutine that does nothing costs 0.1 us a token
                        await out.room()
            pending += session.end()
        self._write(pending)
        await out.room()  # before the next request is taken: answers that nobody reads must not pile up

    def _write(self, data: bytes) -> None:
        self.head_sent = True
        self._out.write(data)

    def _fail(self, what: str) -> None:
        """Say that the answer broke: with a 500, or, once the head is out, by a body that visibly does not end."""
        log.exception(what)
        if not self.head_sent and not self.gone:
            self._write(self._session.start(self._session.error(InternalError())))


async def _release(response: Response) -> None:
    try:
        await response.aclose()
    except Exception:
        log.exception("closing a response failed")
