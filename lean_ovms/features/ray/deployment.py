"""The app as a Ray Serve deployment: each replica has models of its own, Ray spreads requests over replicas.

Ray calls the deployment with a Starlette request and sends the Starlette response that it returns; when the client
leaves it cancels the task of both. What is returned here takes nothing before it is sent: the whole exchange happens in
the response, by the rules of features/asgi, so nothing can be left over between the two calls.

What Ray's proxies answer themselves, as for a replica that has died, is text, which clients of these APIs cannot read.
`ProxyErrors` makes error objects of it, in the processes of the proxies: Ray has it from `proxy_middlewares`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import sys
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from starlette.middleware import Middleware
from starlette.responses import Response as StarletteResponse

from ...api.app import App
from ...composition import compose
from ...config import Config
from ...errors import NotFound, RequestError, RequestTimeout, TooManyRequests, Unavailable
from ...server.opened import opened
from ...transports.cycle import request_headers
from ..asgi.adapter import asgi
from ..asgi.scope import header, request_of, response_headers

if TYPE_CHECKING:
    from starlette.requests import Request as StarletteRequest

    from ..asgi.adapter import Asgi
    from ..asgi.scope import Message, Receive, Scope, Send

__all__ = ["PROXY_CALLBACK", "LeanOvms", "application", "proxy_middlewares"]
log = logging.getLogger("lean_ovms.ray")

PROXY_CALLBACK = "RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH"
"""Ray's environment variable for a function that returns the middlewares of its proxies (2.60)."""
PROXY_MIDDLEWARES = "lean_ovms.ray_serve:proxy_middlewares"
"""The public name of that function."""
RAY_ERRORS: dict[int, type[RequestError]] = {404: NotFound, 408: RequestTimeout, 429: TooManyRequests}
"""Errors by the status that Ray gives them; others from 500 on are Unavailable."""
MOST_TEXT = 1000
"""Characters of a text of Ray that are shown."""


class ProxyErrors:
    """An ASGI app around that of a proxy: its errors have the form that the client of a path reads."""

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
            await response.fail(Unavailable("The replica that had this request has died.", code="replica_died"))


class _ProxyResponse:
    """A response of a proxy. started: the client has got its head."""

    def __init__(self, scope: Scope, send: Send) -> None:
        self.started = False
        self._scope = scope
        self._send = send
        self._refused: Message | None = None
        self._text = b""

    async def send(self, message: Message) -> None:
        """Sends what a replica answers as it is. A text that refuses is Ray's: a replica refuses with JSON."""
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
        request_id = headers.get("x-request-id", "")  # the proxy has added it, where the client has sent none
        request = request_of(self._scope, headers, b"")
        response = compose().error_forms.response(error, request=request, request_id=request_id)
        assert isinstance(response.body, bytes)
        head = [*response_headers(response), header("content-length", str(len(response.body)))]
        head += [header("x-request-id", request_id)] if request_id else []
        await self._send({"type": "http.response.start", "status": response.status, "headers": head})
        await self._send({"type": "http.response.body", "body": response.body})


def proxy_middlewares() -> list[Middleware]:
    """Returns the middlewares of Ray's proxies; PROXY_CALLBACK names this function."""
    return [Middleware(ProxyErrors)]


class Exchange(StarletteResponse):
    """A response that is asked for while it is sent."""

    def __init__(self, app: Asgi, request: StarletteRequest) -> None:
        super().__init__()
        self._app = app
        self._request = request

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def sent(message: Message) -> None:
            if message["type"] == "http.response.start":  # Ray's proxy adds this header itself, and gave us its value
                message["headers"] = [(name, value) for name, value in message["headers"] if name != b"x-request-id"]
            await send(message)

        # The request's own receive: what a host passes here need not know of the body, nor of the client's leaving.
        await self._app(self._request.scope, self._receive, sent)

    async def _receive(self) -> Message:
        """The border to Ray: that the client has left may also come as an error of Ray's (TaskCancelledError, 2.60)."""
        try:
            return await self._request.receive()
        except Exception as error:
            log.debug("Ray receives no more of a request: %r", error)
            return {"type": "http.disconnect"}


class LeanOvms:
    """What Ray makes a replica of: `application(model_path=...)`, or LeanOvms in a deployment of your own."""

    async def __init__(self, **options: Any) -> None:  # type: ignore[misc]  # Ray awaits it
        """Loads the models. options: fields of Config; addresses have no meaning here. Raises StartError."""
        self._stack = contextlib.AsyncExitStack()
        self._app: App = await self._stack.enter_async_context(opened(Config(**options)))
        self._asgi = asgi(self._app)

    async def __call__(self, request: StarletteRequest) -> StarletteResponse:
        return Exchange(self._asgi, request)

    async def check_health(self) -> None:
        """Ray replaces a replica when this raises. An engine that restarts is given its time."""
        if all(model.state in ("failed", "stopped") for model in self._app.registry.models.values()):
            raise RuntimeError("no model of this replica can be served any more")

    async def close(self) -> None:
        """Stop the engines. Idempotent."""
        if stack := self.__dict__.pop("_stack", None):
            await stack.aclose()

    def __del__(self) -> Awaitable[None] | None:
        """Ray calls this when it stops a replica, in the replica's event loop, and awaits what it returns.

        When Python collects a replica without a loop it is about to end, and the engines end with it.
        """
        if "_stack" not in self.__dict__ or asyncio._get_running_loop() is None:
            return None
        return self.close()


def application(*, deployment: dict[str, Any] | None = None, **options: Any) -> Any:
    """A Ray Serve application: `serve.run(application(model_path="/models/m"))`.

    deployment: options of Ray's deployment, such as num_replicas, ray_actor_options or max_ongoing_requests (100 by
    default here: the engine batches, and queues what is too much). options: fields of Config.

    The proxies of a cluster that this process starts later have `proxy_middlewares`. Those of another one have them
    where PROXY_CALLBACK was set when the cluster was started.
    """
    if "ray" not in sys.modules or not sys.modules["ray"].is_initialized():
        os.environ.setdefault(PROXY_CALLBACK, PROXY_MIDDLEWARES)
    from ray import serve

    settings = {"max_ongoing_requests": 100, **(deployment or {})}
    return serve.deployment(**settings)(LeanOvms).bind(**options)
