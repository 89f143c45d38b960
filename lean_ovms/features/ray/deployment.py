"""The app as a Ray Serve deployment. Each replica has its own models, and Ray distributes requests over the replicas.

Ray calls the deployment with a Starlette request, and sends the Starlette response that it returns. When the client
leaves, Ray cancels the task of both. The returned object takes no resources before it is sent: the whole exchange
happens while the response is sent, by the rules of features/asgi, so nothing can be left over between the two calls.
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

from ...api.app import App
from ...cli.keywords import of_keywords
from ...errors import StartError, install_command
from ...server.opened import opened
from ..asgi.adapter import asgi
from .metrics import publishing
from .replicas import Change, Replicas, Result

NEEDS = f"lean_ovms.ray_serve needs {install_command('ray')}"
try:
    from starlette.responses import Response as StarletteResponse

    from .proxy import proxy_middlewares
except ImportError as missing:
    raise ImportError(NEEDS) from missing

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
"""Seconds between a replica's reports to the routers of all proxies; each is at most 32 KB."""
ROUTER = "lean_ovms.features.ray.router.PrefixAffinityRouter"
"""The class of the default router of an application."""


class Exchange(StarletteResponse):
    """A Starlette response that calls the app only while it is sent."""

    def __init__(self, app: Asgi, request: StarletteRequest) -> None:
        super().__init__()
        self._app = app
        self._request = request

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def sent(message: Message) -> None:
            if message["type"] == "http.response.start":  # Ray's proxy adds this header itself, with the same value
                message["headers"] = [(name, value) for name, value in message["headers"] if name != b"x-request-id"]
            await send(message)

        # The request's own receive is used, because hosts may pass one that knows neither the body nor disconnects.
        await self._app(self._request.scope, self._receive, sent)

    async def _receive(self) -> Message:
        """Receives a message from Ray.

        If the client has left, Ray may raise an error (TaskCancelledError, 2.60), which is distinguished here from
        other cancellations.
        """
        try:
            return await self._request.receive()
        except Exception as error:
            log.debug("Ray receives no more of a request: %r", error)
            return {"type": "http.disconnect"}


class LeanOvms:
    """The class of which Ray makes replicas: used by `application(model_path=...)`, or in a deployment of your own."""

    async def __init__(self, **options: Any) -> None:  # type: ignore[misc]  # Ray awaits it
        """Loads the models with the command line's options, of which addresses have no effect. Raises StartError."""
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
        """Makes a change that another replica has received, which calls this. Returns None in that replica itself."""
        return await self._replicas.change(change)

    async def changes(self) -> list[Change]:
        """Returns the changes that a starting replica must make, too; called by that replica."""
        return self._replicas.changes()

    async def record_routing_stats(self) -> dict[str, bytes]:
        """Returns the prefixes of computed prompts for the routers of all proxies; Ray calls it every few seconds."""
        return self._replicas.known()

    async def check_health(self) -> None:
        """Raises an error if Ray should replace the replica. A restarting engine is given time."""
        if all(model.state in ("failed", "stopped") for model in self._app.registry.models.values()):
            raise RuntimeError("this replica can no longer serve any model")

    async def close(self) -> None:
        """Stops the engines. Idempotent."""
        if stack := self.__dict__.pop("_stack", None):
            await stack.aclose()

    def __del__(self) -> Awaitable[None] | None:
        """Stops the engines; Ray calls it in the replica's event loop when it stops the replica, and awaits the result.

        If Python collects the object without an event loop, the process is about to end, and the engines end with it.
        """
        if "_stack" not in self.__dict__ or asyncio._get_running_loop() is None:
            return None
        return self.close()


def application(*, deployment: dict[str, Any] | None = None, **options: Any) -> Any:
    """Returns a Ray Serve application: `serve.run(application(model_path="/models/m"))`.

    If this process starts the cluster afterwards, its proxies have `proxy_middlewares`. Those of any other cluster have
    them if PROXY_CALLBACK was set when it was started.

    Args:
        deployment: Options of Ray's deployment, such as num_replicas, ray_actor_options or max_ongoing_requests (by
            default 100, since the engine batches requests and queues the rest).
        options: Options of the command line.

    Raises:
        StartError: The options are not valid. Whether the models can be loaded is seen in the replicas.
    """
    of_keywords(**options)
    if "ray" not in sys.modules or not sys.modules["ray"].is_initialized():
        os.environ.setdefault(PROXY_CALLBACK, PROXY_MIDDLEWARES)
    try:
        from ray import serve
        from ray.serve.config import RequestRouterConfig
    except ImportError as missing:
        raise ImportError(NEEDS) from missing
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
        StartError: The options are not valid.
    """
    options = dict(arguments)
    deployment = options.pop("deployment", None)
    if isinstance(deployment, str):
        try:
            deployment = orjson.loads(deployment)
        except orjson.JSONDecodeError as error:
            raise StartError(f"deployment is not JSON: {error}") from None
    if not isinstance(deployment or {}, dict):
        raise StartError("deployment is not a JSON object with options of Ray's deployment")
    return application(deployment=deployment, **options)
