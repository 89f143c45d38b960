"""Opens an app with its models loaded for the duration of a block, which is how every program that embeds the server
begins.

Nothing here changes signals, the event loop's policy or the process, which belong to the program. Engines are child
processes. They end with the block that started them, and with the thread that entered it, since Linux signals a child
at the end of the thread that started it, not of the process.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any, Generic, ParamSpec, Protocol, TypeVar, cast, overload

from ..api.app import App
from ..cli.keywords import of_keywords
from ..config import Config
from .run import build, close, load, watch

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
P = ParamSpec("P")


class _Block(Protocol[P, T_co]):
    """A function that takes a Config, or options by name."""

    @overload
    def __call__(self, config: Config, /) -> T_co: ...

    @overload
    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> T_co: ...


class OfOptions(Generic[P]):
    """Declares the types of a function's keyword arguments as those of this class."""

    def __init__(self, _: Callable[P, Config]) -> None: ...

    def __call__(self, function: Callable[..., T]) -> _Block[P, T]:
        return cast("_Block[P, T]", function)


@OfOptions(Config)
@contextlib.asynccontextmanager
async def opened(config: Config | None = None, **options: Any) -> AsyncIterator[App]:
    """Yields an app with its models loaded, which answers by `await app.handle(request)` or through `asgi`.

    At the end of the block, running requests are cancelled and engines stopped.

    Args:
        config: The options; None if they are given by name.
        **options: The options, with the names of the command line.

    Raises:
        StartError: A model cannot be served.
    """
    app = build(config or of_keywords(**options))
    watching: asyncio.Future[None] | None = None
    try:
        await load(app)
        watching = asyncio.ensure_future(watch(app))
        yield app
    finally:
        app.services.draining = True
        if watching is not None:
            watching.cancel()
            await asyncio.wait([watching])
        await close(app)
