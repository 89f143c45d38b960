"""The app as an ASGI 3 callable, for uvicorn, hypercorn, a Starlette mount or a Ray Serve ingress.

It keeps the transport contract (cycle.py). Hosts report in different ways that the client has left: in all of them
`receive` returns http.disconnect while the handler runs, and in hosts of spec 2.4 `send` raises OSError as well. So the
handler races with `receive`, as in vLLM's with_cancellation. Plain Starlette would let the handler of a unary response
run on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from contextlib import aclosing
from functools import partial

from ...api.app import App
from ...composition import OPENAI_ONLY, ErrorForms
from ...errors import InternalError, PayloadTooLarge, RequestError
from ...transports.cycle import RequestBody, RequestResponseCycle, request_headers
from ...types import Handle, Request, Response
from ...types.push import StreamIterator
from . import websocket
from .scope import Message, Receive, Scope, Send, header, request_of, response_headers


class Asgi:
    """The app as an ASGI callable. Time limits are the business of the host."""

    def __init__(
        self,
        handle: Handle,
        max_body_bytes: int,
        check_head: Callable[[Request], None] = lambda request: None,
        error_forms: ErrorForms = OPENAI_ONLY,
        error_headers: Sequence[tuple[str, str]] = (),
    ) -> None:
        """Keeps the settings; nothing is started.

        Args:
            handle: Answers a request.
            max_body_bytes: The most bytes of a body; a longer one is answered with 413.
            check_head: Checks a request by its head and may raise RequestError, before its body is read.
            error_forms: The forms of errors by path, for errors that are found in this class.
            error_headers: The headers of such errors, such as those of CORS, without which no page can read them.
        """
        self._handle = handle
        self._max_body_bytes = max_body_bytes
        self._check_head = check_head
        self._error_forms = error_forms
        self._error_headers = error_headers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await self._http(scope, receive, send)
        elif scope["type"] == "lifespan":
            await _lifespan(receive, send)
        elif scope["type"] == "websocket":
            await websocket.serve(self._handle, self._error_forms, scope, receive, send)
        else:
            raise ValueError(f"unknown ASGI scope {scope['type']!r}")

    async def _http(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = request_headers(scope["headers"])
        # Kept until the end without a body, because the form of errors depends on it.
        head = request_of(scope, headers, b"")
        in_form = partial(self._error_forms.response, headers=self._error_headers, request=head)
        cycle = _AsgiCycle(self._handle, in_form, send, wants_body=head.method != "HEAD")
        try:
            self._check_head(head)
            body = await _body(receive, headers, self._max_body_bytes)
            if body is None:
                return
            request = body.into(request_of(scope, headers, b""))
        except RequestError as error:
            await cycle.send(in_form(error))
            return
        del body  # frees the bytes, which the app removes from the request as well
        task = cycle.start(asyncio.get_running_loop(), request)
        disconnect = asyncio.ensure_future(_disconnect(receive))
        try:
            await asyncio.wait({task, disconnect}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            disconnect.cancel()
            cycle.cancel()
            await asyncio.wait({task, disconnect})
        if not disconnect.cancelled():
            disconnect.result()  # passes an error of receive on to the host
        if not task.cancelled():
            task.result()  # passes an error of the body on, so that the host aborts the response too


class ClientLeft(Exception):
    """Raised if `send` fails. It is not OSError, which a broken handler could raise as well."""


class _AsgiCycle(RequestResponseCycle):
    """One request and its response through ASGI's `send`. A body that breaks off after its start is an error."""

    def __init__(
        self, handle: Handle, error_response: Callable[[RequestError], Response], send: Send, *, wants_body: bool
    ) -> None:
        super().__init__(handle, error_response)
        self._send = send
        self._wants_body = wants_body
        self._started = False

    async def send(self, response: Response) -> None:
        try:
            await self._send_response(response)
        except ClientLeft:
            self.cancelled = True

    async def send_failure(self) -> None:
        if self._started:
            raise RuntimeError("the response ended early")
        if not self.cancelled:
            await self.send(self.error_response(InternalError()))

    async def _send_response(self, response: Response) -> None:
        body = response.body
        if isinstance(body, bytes):
            await self._start(response, [("content-length", str(len(body)))])
            await self._emit({"type": "http.response.body", "body": body if self._wants_body else b""})
            return
        if self._wants_body:
            async with aclosing(StreamIterator(body)) as pieces:
                await asyncio.sleep(0)
                if pieces.waiting:  # otherwise the head is sent with the first piece, or a failure can still be a 500
                    await self._start(response)
                async for data in pieces:
                    if self.cancelled:
                        return
                    if data:
                        await self._start(response)
                        await self._emit({"type": "http.response.body", "body": data, "more_body": True})
        await self._start(response)
        await self._emit({"type": "http.response.body", "body": b""})

    async def _start(self, response: Response, framing: Iterable[tuple[str, str]] = ()) -> None:
        """Sends the head of the response, unless it was sent. Until then a failure can be answered with 500."""
        if self._started:
            return
        headers = response_headers(response)
        headers += [header(name, value) for name, value in framing]
        if response.close:
            headers.append((b"connection", b"close"))
        self._started = True
        await self._emit({"type": "http.response.start", "status": response.status, "headers": headers})

    async def _emit(self, message: Message) -> None:
        try:
            await self._send(message)
        except OSError as error:
            raise ClientLeft from error


async def _disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _body(receive: Receive, headers: dict[str, str], limit: int) -> RequestBody | None:
    """Reads the whole body. Returns None if the client leaves before all has arrived. Raises PayloadTooLarge."""
    declared = headers.get("content-length", "")
    size = int(declared) if declared.isdecimal() else 0
    _check_size(size, limit)
    body, more = RequestBody(headers), True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        body.write(message.get("body", b""))
        _check_size(body.tell(), limit)
        more = message.get("more_body", False)
    return body


def _check_size(size: int, limit: int) -> None:
    if size > limit:
        raise PayloadTooLarge(f"the request body exceeds {limit} bytes")


async def _lifespan(receive: Receive, send: Send) -> None:
    """Acknowledges lifespan events without effect, since the program that created the app also closes it."""
    while True:
        message = await receive()
        await send({"type": f"{message['type']}.complete"})
        if message["type"] == "lifespan.shutdown":
            return


def asgi(app: App, handle: Handle | None = None) -> Asgi:
    """Returns the app as an ASGI callable, to mount in Starlette or FastAPI, or for a host such as uvicorn.

    Requests are answered by `handle`, or by the app if that is None.
    """
    config = app.config
    error_forms = config.composition.error_forms.below(config.root_path)
    return Asgi(handle or app.handle, config.max_body_bytes, app.check_head, error_forms, config.cors_headers())
