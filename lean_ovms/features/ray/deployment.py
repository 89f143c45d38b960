"""The app as a Ray Serve deployment: each replica has models of its own, Ray spreads requests over replicas.

Ray calls the deployment with a Starlette request and sends the Starlette response that it returns; when the client
leaves it cancels the task of both. What is returned here takes nothing before it is sent: the whole exchange happens in
the response, by the rules of features/asgi, so nothing can be left over between the two calls.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import sys
from collections.abc import Awaitable
from typing import TYPE_CHECKING, Any

import orjson
from starlette.responses import Response as StarletteResponse

from ...api.app import App
from ...cli.keywords import of_keywords
from ...errors import StartError
from ...server.opened import opened
from ..asgi.adapter import asgi
from .metrics import publishing
from .proxy import proxy_middlewares
from .replicas import Change, Replicas, Result

if TYPE_CHECKING:
    from starlette.requests import Request as StarletteRequest

    from ..asgi.adapter import Asgi
    from ..asgi.scope import Message, Receive, Scope, Send

__all__ = ["PROXY_CALLBACK", "LeanOvms", "app", "application", "proxy_middlewares"]
log = logging.getLogger("lean_ovms.ray")

PROXY_CALLBACK = "RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH"
"""Ray's environment variable for a function that returns the middlewares of its proxies (2.60)."""
PROXY_MIDDLEWARES = "lean_ovms.ray_serve:proxy_middlewares"
"""The public name of that function."""
REPORT_PERIOD_S = 5.0
"""Seconds between the reports of a replica to the routers of all proxies: each is 32 KB at most."""
ROUTER = "lean_ovms.features.ray.router.PrefixAffinityRouter"
"""The class of the router that an application has by default."""


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
        """Receives from Ray, at whose border it is told apart who left: that the client has left may also come as an
        error of Ray's (TaskCancelledError, 2.60).
        """
        try:
            return await self._request.receive()
        except Exception as error:
            log.debug("Ray receives no more of a request: %r", error)
            return {"type": "http.disconnect"}


class LeanOvms:
    """A server that Ray makes replicas of: `application(model_path=...)`, or LeanOvms in a deployment of your own."""

    async def __init__(self, **options: Any) -> None:  # type: ignore[misc]  # Ray awaits it
        """Loads the models.

        Args:
            options: Those of the command line, as their values or as texts; addresses have no meaning here.

        Raises:
            StartError: If an option is not valid, or a model cannot be loaded.
        """
        self._stack = contextlib.AsyncExitStack()
        self._app: App = await self._stack.enter_async_context(opened(of_keywords(**options)))
        await self._stack.enter_async_context(publishing(self._app))
        self._replicas = Replicas(self._app)
        await self._replicas.catch_up()
        settling = asyncio.ensure_future(self._replicas.settle())
        self._stack.callback(settling.cancel)
        self._asgi = asgi(self._app, self._replicas.handle)

    async def __call__(self, request: StarletteRequest) -> StarletteResponse:
        return Exchange(self._asgi, request)

    async def change(self, change: Change) -> Result | None:
        """Is called on every replica by the one that a change has come to. Returns None where it was made already."""
        return await self._replicas.change(change)

    async def changes(self) -> list[Change]:
        """Is called by a replica that starts. Returns the changes that it has to make, too."""
        return self._replicas.changes()

    async def record_routing_stats(self) -> dict[str, bytes]:
        """Is called by Ray every few seconds. Returns the beginnings of prompts for the routers of all proxies."""
        return self._replicas.known()

    async def check_health(self) -> None:
        """Raises an error where Ray should replace the replica. An engine that restarts is given its time."""
        if all(model.state in ("failed", "stopped") for model in self._app.registry.models.values()):
            raise RuntimeError("no model of this replica can be served any more")

    async def close(self) -> None:
        """Stops the engines. Idempotent."""
        if stack := self.__dict__.pop("_stack", None):
            await stack.aclose()

    def __del__(self) -> Awaitable[None] | None:
        """Is called by Ray when it stops a replica, in the replica's event loop; Ray awaits what it returns.

        When Python collects a replica without a loop it is about to end, and the engines end with it.
        """
        if "_stack" not in self.__dict__ or asyncio._get_running_loop() is None:
            return None
        return self.close()


def application(*, deployment: dict[str, Any] | None = None, **options: Any) -> Any:
    """Returns a Ray Serve application: `serve.run(application(model_path="/models/m"))`.

    The proxies of a cluster that this process starts later have `proxy_middlewares`. Those of another one have them
    where PROXY_CALLBACK was set when the cluster was started.

    Args:
        deployment: Options of Ray's deployment, such as num_replicas, ray_actor_options or max_ongoing_requests (100 by
            default here: the engine batches, and queues what is too much).
        options: Options of the command line.
    """
    if "ray" not in sys.modules or not sys.modules["ray"].is_initialized():
        os.environ.setdefault(PROXY_CALLBACK, PROXY_MIDDLEWARES)
    from ray import serve
    from ray.serve.config import RequestRouterConfig

    settings = {"max_ongoing_requests": 100, **(deployment or {})}
    routing = RequestRouterConfig(request_router_class=ROUTER, request_routing_stats_period_s=REPORT_PERIOD_S)
    settings.setdefault("request_router_config", routing)
    return serve.deployment(**settings)(LeanOvms).bind(**options)


def app(arguments: dict[str, Any]) -> Any:
    """Returns a Ray Serve application for `serve run lean_ovms.ray_serve:app model_path=/models/m`, and for the `args`
    of `serve deploy`.

    Args:
        arguments: Options of the command line, as texts or as values; and `deployment`, the options of Ray's deployment
            or their JSON.

    Raises:
        StartError: They cannot be served.
    """
    options = dict(arguments)
    deployment = options.pop("deployment", None)
    if isinstance(deployment, str):
        try:
            deployment = orjson.loads(deployment)
        except orjson.JSONDecodeError as error:
            raise StartError(f"deployment is not JSON: {error}") from None
    return application(deployment=deployment, **options)
