"""The generations of a request with several prompts.

Each starts in a turn of its own of the event loop, and few wait for the engine at a time: what one prompt takes may be
multiplied neither in one turn nor in memory. Their tokens are limited together, since one client's queue is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from itertools import chain
from typing import Any, TypeVar

from ..errors import TOO_LONG, BadRequest
from ..types import Prompt, TextPrompt, TokenPrompt
from .generation import Generation

P = TypeVar("P", bound=Prompt)
STARTING, STARTING_SIZE = 32, 1 << 18
"""Prompts of one request that wait for the engine, which takes 32 in a step, and their characters or ids."""


async def start_all(
    prompts: Iterable[P], start: Callable[[P], Coroutine[Any, Any, Generation]], most_tokens: int
) -> list[Generation]:
    """A generation for each prompt of a request, or none: when one is refused the others are closed.

    prompts: made while they are iterated over they take little memory, as few of them wait for the engine at a time.
    most_tokens: of all prompts, if there are several. Raises RequestError.
    """
    prompts = iter(prompts)
    first, second = next(prompts), next(prompts, None)
    if second is None:
        return [await start(first)]
    starting = _Starting(most_tokens)
    try:
        for prompt in chain((first, second), prompts):
            await starting.has_place(_size(prompt))
            starting.add(start(prompt), _size(prompt))
            await asyncio.sleep(0)
        return await starting.finish()
    except BaseException:
        await starting.abort()
        raise


class _Starting:
    """The generations of a request while they are started: most of them at the same time."""

    def __init__(self, most_tokens: int) -> None:
        self._tasks: list[asyncio.Task[Generation]] = []
        self._waiting: dict[asyncio.Task[Generation], int] = {}  # with their sizes
        self._tokens, self._most_tokens = 0, most_tokens

    async def has_place(self, size: int) -> None:
        """Wait until one more may wait for the engine. Raises what a generation has raised."""
        self._take_started()
        while self._waiting and (len(self._waiting) >= STARTING or sum(self._waiting.values()) + size > STARTING_SIZE):
            await self._wait()

    def add(self, start: Coroutine[Any, Any, Generation], size: int) -> None:
        task = asyncio.ensure_future(start)
        self._tasks.append(task)
        self._waiting[task] = size

    async def finish(self) -> list[Generation]:
        """All of them. Raises what one has raised."""
        while self._waiting:
            await self._wait()
        return [task.result() for task in self._tasks]

    async def _wait(self) -> None:
        await asyncio.wait(self._waiting, return_when=asyncio.FIRST_COMPLETED)
        self._take_started()

    def _take_started(self) -> None:
        for task in [task for task in self._waiting if task.done()]:
            del self._waiting[task]
            self._tokens += task.result().prompt_tokens
        check_total(self._tokens, self._most_tokens)

    async def abort(self) -> None:
        """Close what was started."""
        for task in self._tasks:
            task.cancel()
        for result in await asyncio.gather(*self._tasks, return_exceptions=True):
            if isinstance(result, Generation):
                await result.aclose()


def check_common(tokens: int, own_bytes: int, count: int, most: int) -> None:
    """Raises BadRequest for prompts that have too many tokens together, by those of the first one.

    own_bytes: of what it alone has: so many of its tokens at most are not in each of the others. count: of all.
    """
    check_total(tokens + (count - 1) * max(0, tokens - own_bytes), most)


def check_total(tokens: int, most: int) -> None:
    """Raises BadRequest for prompts of one request that have more tokens together. most: the option's value."""
    if tokens > most:
        raise BadRequest(
            f"the prompts of this request have more than {most} tokens together, which is the limit of this server "
            "(--max_queued_tokens_per_client): send them in several requests",
            code=TOO_LONG,
        )


def _size(prompt: Prompt) -> int:
    """Characters, or ids."""
    if isinstance(prompt, TokenPrompt):
        return len(prompt.tokens)
    return len(prompt.text) if isinstance(prompt, TextPrompt) else prompt.render_cost
