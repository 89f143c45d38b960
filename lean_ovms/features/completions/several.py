"""Requests with several prompts: each prompt is a generation, and all are combined to one stream of deltas.

Each generation starts in its own turn of the event loop, and few wait for the engine at a time, so that many prompts
neither block the loop nor take much memory. The tokens of all prompts together are limited.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Sequence
from functools import partial
from itertools import chain
from typing import Any, TypeVar

from ...errors import TOO_LONG, BadRequest
from ...models.generation import CompletedChoice, DeltaStream, Generation, collect, total_usage
from ...types import ChatPrompt, Delta, Prompt, TextPrompt, Timings, TokenPrompt, Usage
from ...types.push import Sink
from ..chat.generation import GenerationBody

MOST_BYTES = 4
"""The most UTF-8 bytes of one character, and so the most tokens that it can become."""
MESSAGE_BYTES = 256
"""The bytes that are allowed for the text that a chat template writes around one message."""
P = TypeVar("P", bound=Prompt)
STARTING, STARTING_SIZE = 32, 1 << 18
"""The most prompts of one request that wait for the engine at a time, of which a step starts 32, and the most
characters or token ids in these."""


async def start_all(
    prompts: Iterable[P], start: Callable[[P], Coroutine[Any, Any, Generation]], most_tokens: int
) -> list[Generation]:
    """Starts a generation for each prompt of a request. If one is refused, the others are closed.

    Args:
        prompts: The prompts. A generator saves memory, as few of them wait for the engine at a time.
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
    waiting: dict[asyncio.Task[Generation], int] = {}  # started requests, with the sizes of their prompts
    tokens = 0

    async def next_started() -> None:
        """Waits until another generation has started. Raises its error if it was refused."""
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
    """Raises BadRequest if prompts with a common beginning have too many tokens together, judged by the first prompt.

    Args:
        tokens: The number of tokens of the first prompt.
        own_bytes: The bytes of the first prompt that the others do not share, an upper bound of its own tokens.
        count: The number of all prompts.
        most: The most tokens of all prompts together.
    """
    check_total(tokens + (count - 1) * max(0, tokens - own_bytes), most)


def check_total(tokens: int, most: int) -> None:
    """Raises BadRequest if all prompts of a request have more tokens than the option that limits them allows."""
    if tokens > most:
        raise BadRequest(
            f"the prompts of this request have more than {most} tokens together, this server's limit "
            "(--max_queued_tokens_per_client): send them in several requests",
            code=TOO_LONG,
        )


def _size(prompt: Prompt) -> int:
    if isinstance(prompt, TokenPrompt):
        return len(prompt.tokens)
    return len(prompt.text) if isinstance(prompt, TextPrompt) else prompt.render_cost


async def start_prompts(body: GenerationBody, prompts: Iterable[Prompt], *, echo: bool = False) -> list[Generation]:
    """Starts a generation for each prompt of a request. If one cannot start, all are closed.

    Args:
        body: The request.
        prompts: The prompts of the request.
        echo: Whether the generations keep the token ids of their prompts.

    Raises:
        RequestError: A generation cannot start.
    """
    most = body.model.config.max_queued_tokens_per_client
    if body.truncate is None and isinstance(prompts, Sequence) and len(prompts) > 1:
        check_total(sum(len(prompt.tokens) for prompt in prompts if isinstance(prompt, TokenPrompt)), most)
        if isinstance(prompts[0], ChatPrompt) and prompts[0].shared_chars:
            return await _start_conversations(body, prompts[0], prompts[1:], echo=echo)
    return await start_all(prompts, partial(body.start, echo=echo), most)


async def _start_conversations(
    body: GenerationBody, first: ChatPrompt, others: Sequence[Prompt], *, echo: bool
) -> list[Generation]:
    """Starts conversations with the same tools. If they are too many by the tokens of the first, no others are made."""
    most = body.model.config.max_queued_tokens_per_client
    generation = await body.start(first, echo=echo)
    try:
        own = MOST_BYTES * (first.num_chars + first.other_chars - first.shared_chars)
        own += MESSAGE_BYTES * (1 + len(first.messages))
        check_common(generation.prompt_tokens, own, 1 + len(others), most)
        left = most - generation.prompt_tokens
        return [generation, *await start_all(others, partial(body.start, echo=echo), left)]
    except BaseException:
        await generation.aclose()
        raise


class GenerationGroup:
    """Several generations as one stream: choice i of generation g is choice g * n + i. Deltas come when ready."""

    def __init__(self, generations: list[Generation], n: int) -> None:
        self._generations = generations
        self._n = n

    @property
    def usage(self) -> Usage:
        """The token counts so far, summed over all generations."""
        return total_usage([g.usage for g in self._generations])

    @property
    def timings(self) -> Timings:
        """The timings: token counts summed over all generations, and the longest time of any of them."""
        parts = [g.timings for g in self._generations]
        return Timings(
            cached=sum(t.cached for t in parts),
            prompt=sum(t.prompt for t in parts),
            prompt_ms=max(t.prompt_ms for t in parts),
            predicted=sum(t.predicted for t in parts),
            predicted_ms=max(t.predicted_ms for t in parts),
            queue_ms=max(t.queue_ms for t in parts),
            drafted=[tokens for t in parts for tokens in t.drafted or ()],
            accepted=[tokens for t in parts for tokens in t.accepted],
        )

    async def push_to(self, sink: Sink[list[Delta]]) -> None:
        pushes = [partial(self._push, sink.push, g * self._n) for g in range(len(self._generations))]
        pairs = zip(self._generations, pushes, strict=True)
        try:
            await asyncio.gather(*[generation.push_to(Sink(push, sink.paused)) for generation, push in pairs])
        except BaseException:
            await self.aclose()  # stops the other generations
            raise

    @staticmethod
    def _push(push: Callable[[list[Delta]], object], first: int, deltas: list[Delta]) -> None:
        for delta in deltas:
            delta.index += first
        push(deltas)

    def finish(self, reason: str) -> None:
        for generation in self._generations:
            generation.finish(reason)

    async def aclose(self) -> None:
        """Closes every generation. Idempotent."""
        for generation in self._generations:
            await generation.aclose()


def joined(generations: list[Generation], n: int) -> DeltaStream:
    """Returns the generations as one stream. A single one is returned as it is, since a group is slower."""
    return generations[0] if len(generations) == 1 else GenerationGroup(generations, n)


async def collect_each(generations: list[Generation]) -> tuple[list[CompletedChoice], Usage]:
    """Reads generations of one choice each to their ends. Returns choices and token counts. Raises RequestError."""
    group = GenerationGroup(generations, 1)
    try:
        return await collect(group, len(generations)), group.usage
    finally:
        await group.aclose()
