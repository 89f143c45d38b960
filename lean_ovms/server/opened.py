"""An app with its models loaded, for the length of a block: what every program that has a server in it begins with.

Nothing here touches signals, the event loop's policy or the process: those are the program's. Engines are child
processes; they end with the block that started them, and with the thread that entered it (Linux signals a child at the
end of the thread that started it, not of the process).
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
    """A function of a Config, or of its options by name."""

    @overload
    def __call__(self, config: Config, /) -> T_co: ...

    @overload
    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> T_co: ...


class OfOptions(Generic[P]):
    """Types the keywords of a function as those of this class."""

    def __init__(self, _: Callable[P, Config]) -> None: ...

    def __call__(self, function: Callable[..., T]) -> _Block[P, T]:
        return cast("_Block[P, T]", function)


@OfOptions(Config)
@contextlib.asynccontextmanager
async def opened(config: Config | None = None, **options: Any) -> AsyncIterator[App]:
    """Yields an app with its models loaded: `await app.handle(request)`, or behind `asgi`.

    At the end of the block running requests are cancelled and engines stopped.

    Args:
        config: The options; None: they follow.
        **options: The options by the names that they have in a command line.

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
