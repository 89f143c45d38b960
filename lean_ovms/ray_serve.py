"""The app as a Ray Serve deployment: each replica has models of its own, Ray spreads requests over replicas.

Ray calls the deployment with a Starlette request and sends the Starlette response that it returns; when the client
leaves it cancels the task of both. What is returned here takes nothing before it is sent: the whole exchange happens in
the response, by the rules of asgi.py, so nothing can be left over between the two calls.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable
from typing import TYPE_CHECKING, Any

from starlette.responses import Response as StarletteResponse

from .api.app import App
from .config import Config
from .embed import asgi, opened

if TYPE_CHECKING:
    from starlette.requests import Request as StarletteRequest

    from .transports.asgi import Asgi
    from .transports.asgi_scope import Message, Receive, Scope, Send

log = logging.getLogger("lean_ovms.ray")


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
    """
    from ray import serve

    settings = {"max_ongoing_requests": 100, **(deployment or {})}
    return serve.deployment(**settings)(LeanOvms).bind(**options)
