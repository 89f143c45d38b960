"""The app as an ASGI 3 callable: behind uvicorn or hypercorn, inside a Starlette mount or a Ray Serve ingress.

Obeys the door contract (wire/connection.py states it). Hosts differ in what tells that the client has left: `receive`
says so in all of them while the handler runs, and `send` raises OSError in hosts of spec 2.4. So the handler races
with `receive`, as vLLM's with_cancellation does; plain Starlette would let a unary handler run on.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any

from ..errors import InternalError, PayloadTooLarge, RequestError, error_response
from ..types import Handle, Request, Response

Message = MutableMapping[str, Any]
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

_FRAMING = frozenset({"content-length", "transfer-encoding", "connection"})
"""The host's business."""

_LINE_END = re.compile(r"[\r\n\0]")

log = logging.getLogger("lean_ovms.asgi")


class Asgi:
    """Serves handle. A body of more than max_body_bytes is a 413; time limits are the host's."""

    def __init__(self, handle: Handle, max_body_bytes: int) -> None:
        self._handle = handle
        self._max_body_bytes = max_body_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await self._http(scope, receive, send)
        elif scope["type"] == "lifespan":
            await _lifespan(receive, send)
        elif scope["type"] == "websocket":
            await receive()
            await send({"type": "websocket.close", "code": 1000})
        else:
            raise ValueError(f"unknown ASGI scope {scope['type']!r}")

    async def _http(self, scope: Scope, receive: Receive, send: Send) -> None:
        exchange = _Exchange(self._handle, send, wants_body=scope["method"] != "HEAD")
        headers = _headers(scope)
        try:
            body = await _body(receive, headers, self._max_body_bytes)
        except RequestError as error:
            await exchange.refuse(error)
            return
        if body is None:
            return
        work = asyncio.ensure_future(exchange.run(_request(scope, headers, body)))
        departure = asyncio.ensure_future(_departure(receive))
        try:
            await asyncio.wait({work, departure}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            departure.cancel()
            exchange.cancel(work)
            await asyncio.wait({work, departure})
        if not departure.cancelled():
            departure.result()  # a receive that raised is the host's to hear of
        if not work.cancelled():
            work.result()  # a body that broke off: the host must see it, to break off too


class _ClientLeft(Exception):
    """send failed. Not OSError itself, which a broken handler could raise as well."""


class _Exchange:
    """One request's answer on its way through send."""

    def __init__(self, handle: Handle, send: Send, *, wants_body: bool) -> None:
        self._handle = handle
        self._send = send
        self._wants_body = wants_body
        self._started = False
        self._gone = False
        self._releasing = False

    async def run(self, request: Request) -> None:
        """Ask the handler, send its answer, and close it exactly once. Raises when a started body breaks off."""
        response = await self._ask(request)
        try:
            await self._answer(response)
        except _ClientLeft:
            self._gone = True
        except asyncio.CancelledError:
            if self._gone:
                raise
            await self._fail("the response was cancelled from within")
        except Exception:
            await self._fail("the response failed")
        finally:
            self._releasing = True
            await _release(response)

    def cancel(self, work: asyncio.Future[None]) -> None:
        """The client has left, or the host has given up: stop, unless all that is left is to release the response."""
        self._gone = True
        if not self._releasing:
            work.cancel()

    async def refuse(self, error: RequestError) -> None:
        """Answer a request that the handler does not get to see."""
        with contextlib.suppress(_ClientLeft):
            await self._send_whole(error_response(error))

    async def _send_whole(self, response: Response) -> None:
        """Send a response with a bytes body."""
        assert isinstance(response.body, bytes)
        await self._start(response, [("content-length", str(len(response.body)))])
        await self._emit({"type": "http.response.body", "body": response.body if self._wants_body else b""})

    async def _ask(self, request: Request) -> Response:
        """The handler's answer. The border where its bugs end: they are logged and become a 500."""
        try:
            return await self._handle(request)
        except RequestError as error:
            return error_response(error)
        except asyncio.CancelledError:
            if self._gone:
                raise
            log.exception("the handler was cancelled from within")
        except Exception:
            log.exception("the handler failed")
        return error_response(InternalError())

    async def _answer(self, response: Response) -> None:
        body = response.body
        if isinstance(body, bytes):
            await self._send_whole(response)
            return
        if self._wants_body:
            async for data in body:
                if self._gone:
                    return
                if data:
                    await self._start(response)
                    await self._emit({"type": "http.response.body", "body": data, "more_body": True})
        await self._start(response)
        await self._emit({"type": "http.response.body", "body": b""})

    async def _fail(self, what: str) -> None:
        log.exception(what)
        if self._started:
            raise RuntimeError("the response broke off")
        if not self._gone:
            await self._send_whole(error_response(InternalError()))

    async def _start(self, response: Response, framing: Iterable[tuple[str, str]] = ()) -> None:
        """Send the head, once, when the first piece of the body is there: until then a failure can be a 500."""
        if self._started:
            return
        headers = [_header(name, value) for name, value in response.headers if name.lower() not in _FRAMING]
        headers += [_header(name, value) for name, value in framing]
        if response.close:
            headers.append((b"connection", b"close"))
        self._started = True
        await self._emit({"type": "http.response.start", "status": response.status, "headers": headers})

    async def _emit(self, message: Message) -> None:
        try:
            await self._send(message)
        except OSError as error:
            raise _ClientLeft from error


async def _release(response: Response) -> None:
    try:
        await response.aclose()
    except Exception:
        log.exception("closing a response failed")


async def _departure(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _body(receive: Receive, headers: dict[str, str], limit: int) -> bytes | None:
    """The whole body, or None when the client left before it was here. Raises PayloadTooLarge."""
    declared = headers.get("content-length", "")
    size = int(declared) if declared.isdecimal() else 0
    _check_size(size, limit)
    parts: list[bytes] = []
    size, more = 0, True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        _check_size(size, limit)
        more = message.get("more_body", False)
    return b"".join(parts)


def _check_size(size: int, limit: int) -> None:
    if size > limit:
        raise PayloadTooLarge(f"request body exceeds {limit} bytes")


def _headers(scope: Scope) -> dict[str, str]:
    headers: dict[str, str] = {}
    for raw_name, raw_value in scope["headers"]:
        name, value = raw_name.decode("latin-1").lower(), raw_value.decode("latin-1")
        headers[name] = f"{headers[name]}, {value}" if name in headers else value
    return headers


def _header(name: str, value: str) -> tuple[bytes, bytes]:
    """As ASGI wants it. Not every host would notice a value that ends its line early (header injection)."""
    if _LINE_END.search(value):
        raise ValueError("illegal header value")
    return name.lower().encode("ascii"), value.encode("latin-1", "replace")


def _request(scope: Scope, headers: dict[str, str], body: bytes) -> Request:
    """The host's scope in our words. path is relative to where the app is mounted."""
    root, path = scope.get("root_path", ""), scope["path"]
    if root and path.startswith(f"{root}/"):
        path = path[len(root) :]
    host, port = scope.get("client") or ("", 0)
    peer = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    query = scope.get("query_string", b"").decode("latin-1")
    return Request(scope["method"], path, query, headers, body, peer)


async def _lifespan(receive: Receive, send: Send) -> None:
    """Nothing of ours lives as long as the host: who builds the app also closes it."""
    while True:
        message = await receive()
        await send({"type": f"{message['type']}.complete"})
        if message["type"] == "lifespan.shutdown":
            return
