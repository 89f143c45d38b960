"""The whole server under an ASGI host: `uvicorn lean_ovms.asgi:app`, with options from LEAN_OVMS_… variables.

Models are loaded at lifespan.startup and stopped at lifespan.shutdown; importing this module starts nothing. The host
is responsible for addresses, TLS, timeouts and the access log. Each worker process of a host has models of its own.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from ...cli.arguments import parse
from ...composition import compose
from ...config import Config
from ...errors import StartError, Unavailable
from ...observability.logging import setup
from ...server.opened import opened
from ...types import Request, Response
from .adapter import Asgi, asgi
from .scope import Message, Receive, Scope, Send

__all__ = ["Hosted", "app"]
MAX_BODY_BYTES = 32 << 20
"""The most bytes of a body until the app, which has its own limit, is started. It lets clients get their 503."""


class Hosted:
    """An ASGI callable that opens its app at lifespan.startup and closes it at lifespan.shutdown."""

    def __init__(self, options: Callable[[], Config]) -> None:
        self._options = options
        self._serve = _refusing()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._lifespan(receive, send)
        else:
            await self._serve(scope, receive, send)

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        assert (await receive())["type"] == "lifespan.startup"
        started = False
        try:
            async with opened(self._options()) as app:
                self._serve = asgi(app)
                started = True
                await send({"type": "lifespan.startup.complete"})
                await _wait_for_shutdown(receive)
        except StartError as error:
            if started:
                raise
            await send({"type": "lifespan.startup.failed", "message": f"lean_ovms: {error}"})
            return
        finally:
            self._serve = _refusing()
        await send({"type": "lifespan.shutdown.complete"})


async def _wait_for_shutdown(receive: Receive) -> None:
    message: Message = {"type": ""}
    while message["type"] != "lifespan.shutdown":
        message = await receive()


def _refusing() -> Asgi:
    """Returns an ASGI callable that refuses all requests while there is no app."""
    return Asgi(_not_started, MAX_BODY_BYTES, error_forms=compose().error_forms)


async def _not_started(request: Request) -> Response:
    raise Unavailable("the host has not started the server; it must support ASGI's lifespan protocol")


def _from_environment() -> Config:
    config = parse([], os.environ)
    setup(config.log_level, config.log_format)
    return config


app = Hosted(_from_environment)
"""The ASGI callable for a host's command line."""
