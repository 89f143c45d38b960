"""The middlewares that run in the processes of Ray's proxies, which Ray gets from `proxy_middlewares`.

Errors of the proxies themselves, for instance for a replica that has died, are plain texts, which clients of these APIs
cannot parse; `ProxyErrors` converts them to error objects. `PromptReader` reads the bodies of requests for the router
in the same process (router.py), since Ray chooses the replica without them.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from starlette.middleware import Middleware

from ...composition import compose
from ...errors import NotFound, RequestError, RequestTimeout, TooManyRequests, Unavailable
from ...transports.cycle import request_headers
from ..asgi.scope import header, request_of, response_headers
from .prompts import IN_FLIGHT, MOST_BODY, ProxiedRequest

if TYPE_CHECKING:
    from ..asgi.scope import Message, Receive, Scope, Send

log = logging.getLogger("lean_ovms.ray")

JSON = "application/json"
"""The media type of bodies with prompts. Other bodies are not collected, since another application of the cluster may
answer while it reads."""
RAY_ERRORS: dict[int, type[RequestError]] = {404: NotFound, 408: RequestTimeout, 429: TooManyRequests}
"""The errors by Ray's status; all others from 500 on become Unavailable."""
MOST_TEXT = 1000
"""The most characters of Ray's text that are shown."""


class ProxyErrors:
    """An ASGI app around that of a proxy, which gives its errors the form that the client expects."""

    def __init__(self, app: Callable[[Any, Receive, Send], Awaitable[None]]) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        response = _ProxyResponse(scope, send)
        try:
            await self._app(scope, receive, response.send)
        except Exception as error:
            if response.started:
                raise
            log.warning("Ray's proxy failed: %r", error)
        if not response.started:
            await response.fail(Unavailable("The replica that processed this request has died.", code="replica_died"))


class _ProxyResponse:
    """The response of a proxy."""

    def __init__(self, scope: Scope, send: Send) -> None:
        self.started = False
        """Whether the head has been sent to the client."""
        self._scope = scope
        self._send = send
        self._refused: Message | None = None
        self._text = b""

    async def send(self, message: Message) -> None:
        """Passes on a message of the response, or collects it for an error of Ray, which is plain text, not JSON."""
        if message["type"] == "http.response.start" and not self.started:
            head = request_headers(message["headers"])
            if message["status"] >= 400 and head.get("content-type", "").startswith("text/plain"):
                self._refused = message
                return
        if self._refused is None or message["type"] != "http.response.body":
            self.started = True
            await self._send(message)
            return
        self._text += message.get("body", b"")
        if not message.get("more_body", False):
            status, wait_s = self._refused["status"], request_headers(self._refused["headers"]).get("retry-after", "")
            text = self._text.decode("utf-8", "replace")[:MOST_TEXT]
            error = RAY_ERRORS.get(status, Unavailable if status >= 500 else RequestError)(text, status=status)
            if wait_s.isdecimal():
                error.retry_after_s = int(wait_s)
            await self.fail(error)

    async def fail(self, error: RequestError) -> None:
        """Sends an error."""
        self.started = True
        headers = request_headers(self._scope["headers"])
        request_id = headers.get("x-request-id", "")  # the proxy adds an id if the client has sent none
        request = request_of(self._scope, headers, b"")
        response = compose().error_forms.response(error, request=request, request_id=request_id)
        assert isinstance(response.body, bytes)
        head = [*response_headers(response), header("content-length", str(len(response.body)))]
        head += [header("x-request-id", request_id)] if request_id else []
        await self._send({"type": "http.response.start", "status": response.status, "headers": head})
        await self._send({"type": "http.response.body", "body": response.body})


class PromptReader:
    """An ASGI app around that of a proxy, which gives the router a request and its prompt while it is served."""

    def __init__(self, app: Callable[[Any, Receive, Send], Awaitable[None]]) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = request_headers(scope["headers"])
        request_id = headers.get("x-request-id", "")
        if not request_id:  # otherwise Ray would create one after this app, and the router could not find the request
            request_id = str(uuid.uuid4())
            scope["headers"] = [*scope["headers"], header("x-request-id", request_id)]
        if scope["method"] == "POST" and headers.get("content-type", "").startswith(JSON):
            body, receive = await _read(receive)
        else:
            body = b""
        request = IN_FLIGHT[request_id] = ProxiedRequest(scope["path"], headers, body)

        async def sent(message: Message) -> None:
            request.answered(message.get("body", b""))
            await send(message)

        try:
            await self._app(scope, receive, sent)
        finally:
            if IN_FLIGHT.get(request_id) is request:  # clients may use the same id twice
                del IN_FLIGHT[request_id]


async def _read(receive: Receive) -> tuple[bytes, Receive]:
    """Reads the body of a request.

    Returns the body, which is empty if it is longer than MOST_BODY or the client has left, and a `receive` function
    that begins with the data read.
    """
    messages: list[Message] = []
    size, more = 0, True
    while more and size <= MOST_BODY:
        message = await receive()
        messages.append(message)
        size += len(message.get("body", b""))
        more = message.get("more_body", False)
    whole = not more and size <= MOST_BODY and message["type"] == "http.request"
    body = b"".join([message.get("body", b"") for message in messages]) if whole else b""
    messages.reverse()

    async def again() -> Message:
        return messages.pop() if messages else await receive()

    return body, again


def proxy_middlewares() -> list[Middleware]:
    """Returns the middlewares for Ray's proxies, the inner one first. PROXY_CALLBACK names this function."""
    return [Middleware(ProxyErrors), Middleware(PromptReader)]
