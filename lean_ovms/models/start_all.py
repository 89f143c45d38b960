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
    """Returns a generation for each prompt of a request, or for none: when one is refused the others are closed.

    Args:
        prompts: The prompts. If they are made while they are iterated over they take little memory, as few of them wait
            for the engine at a time.
        start: Starts the generation of a prompt.
        most_tokens: The most tokens of all prompts together, if there are several.

    Raises:
        RequestError: A prompt is refused, or they have too many tokens.
    """
    prompts = iter(prompts)
    first, second = next(prompts), next(prompts, None)
    if second is None:
        return [await start(first)]
    tasks: list[asyncio.Task[Generation]] = []
    waiting: dict[asyncio.Task[Generation], int] = {}  # with their sizes
    tokens = 0

    async def next_started() -> None:
        """Returns when one more waits for the engine no longer. Raises what it has raised."""
        nonlocal tokens
        done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            del waiting[task]
            tokens += task.result().prompt_tokens
        check_total(tokens, most_tokens)

    try:
        for prompt in chain((first, second), prompts):
            size = _size(prompt)
            while any(task.done() for task in waiting) or (
                waiting and (len(waiting) >= STARTING or sum(waiting.values()) + size > STARTING_SIZE)
            ):
                await next_started()
            tasks.append(task := asyncio.ensure_future(start(prompt)))
            waiting[task] = size
            await asyncio.sleep(0)
        while waiting:
            await next_started()
        return [task.result() for task in tasks]
    except BaseException:
        await _abort(tasks)
        raise


async def _abort(tasks: list[asyncio.Task[Generation]]) -> None:
    for task in tasks:
        task.cancel()
    for result in await asyncio.gather(*tasks, return_exceptions=True):
        if isinstance(result, Generation):
            await result.aclose()


def check_common(tokens: int, own_bytes: int, count: int, most: int) -> None:
    """Raises BadRequest if prompts with a common beginning have too many tokens together, which the first one shows.

    Args:
        tokens: The tokens of the first prompt.
        own_bytes: The bytes that it alone has: it has at most so many tokens that are not in each of the others.
        count: The number of all prompts.
        most: The most tokens of all prompts together.
    """
    check_total(tokens + (count - 1) * max(0, tokens - own_bytes), most)


def check_total(tokens: int, most: int) -> None:
    """Checks how many tokens the prompts of one request have together.

    Args:
        tokens: Their number.
        most: The value of the option that limits it.

    Raises:
        BadRequest: They are too many.
    """
    if tokens > most:
        raise BadRequest(
            f"the prompts of this request have more than {most} tokens together, which is the limit of this server "
            "(--max_queued_tokens_per_client): send them in several requests",
            code=TOO_LONG,
        )


def _size(prompt: Prompt) -> int:
    if isinstance(prompt, TokenPrompt):
        return len(prompt.tokens)
    return len(prompt.text) if isinstance(prompt, TextPrompt) else prompt.render_cost
