"""A running request: tokens of the engine become deltas of choices. Knows no HTTP and no JSON bodies.

One stream path: Generation is one accepted request, Batch is several as one, and a whole answer is the stream read to
its end (answer.fold). Closing a generation is the only way to stop its work.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from typing import Protocol

from ..engine.client.engine import Engine, ReplyStream
from ..engine.client.lazy_engine import LazyEngine
from ..engine.protocol import Tokens
from ..errors import RequestError, RequestTimeout
from ..observability.metrics import TokenTimer
from ..observability.records import GenerationRecord
from ..types import Delta, TokenLogprob, Usage
from .output_decoder import OutputDecoder


class DeltaStream(Protocol):
    """What an endpoint needs of a running generation, be it one or several."""

    @property
    def usage(self) -> Usage: ...

    def __aiter__(self) -> AsyncIterator[list[Delta]]: ...

    async def __anext__(self) -> list[Delta]: ...

    async def aclose(self) -> None: ...


OnClose = Callable[[GenerationRecord, "TokenTimer | None"], None]
"""Hears how a generation went, once, when it is closed."""


class Generation:
    """One accepted request. Iterate for what is new; close it in any case, read to the end or not."""

    def __init__(
        self, engine: Engine | LazyEngine, reply: ReplyStream, choices: list[OutputDecoder], on_close: OnClose
    ) -> None:
        self.notices: list[str] = []  # what of the request could not be honoured
        self.asked = time.monotonic()  # whoever knows better when it was asked for sets it
        self.pace: TokenTimer | None = None  # as are the gaps between tokens, by who wants to know them
        self._first_token: float | None = None
        self._error = ""
        self._on_close: OnClose | None = on_close
        self._engine = engine
        self._reply = reply
        self._choices = choices
        self._deadline: asyncio.TimerHandle | None = None

    @property
    def prompt_tokens(self) -> int:
        """Tokens of the prompt, those of its images included."""
        return self._reply.prompt_tokens

    @property
    def prompt_ids(self) -> list[int]:
        """The prompt's token ids, if the generation was started with echo."""
        return self._reply.tokens or []

    def prompt_entries(self) -> list[TokenLogprob]:
        """The prompt's tokens with their log probabilities; those are known with the first delta, if asked for."""
        logprobs = self._reply.prompt_logprobs or [None] * len(self.prompt_ids)
        return [self._choices[0].entry(t, p) for t, p in zip(self.prompt_ids, logprobs, strict=True)]

    @property
    def usage(self) -> Usage:
        """Token counts so far."""
        return Usage(
            self.prompt_tokens,
            sum(c.tokens for c in self._choices),
            sum(c.reasoning_tokens for c in self._choices),
            self._reply.cached_tokens,
        )

    def __aiter__(self) -> Generation:
        return self

    async def __anext__(self) -> list[Delta]:
        # One coroutine and not one per layer: each costs 0.4 us a token and the way back up through it.
        try:
            while (records := self._reply.poll()) is None:
                await self._reply.wait()
        except RequestError as error:
            self._error = error.code or error.kind
            raise
        if not records:
            raise StopAsyncIteration
        if self._first_token is None:
            self._first_token = time.monotonic()
        if self.pace is not None:
            self.pace.tokens(max(len(record.tokens) for record in records))
        deltas = []
        for record in records:
            choice = self._choices[record.index]
            texts = self._texts(choice, record) if choice.window is None else await self._decoded(choice, record)
            delta = choice.take(record, texts)
            if choice.finished and record.reason is None:
                self._reply.cancel(choice.index)  # a stop string, which the engine does not know of
            deltas.append(delta)
        return deltas

    @staticmethod
    def _texts(choice: OutputDecoder, record: Tokens) -> list[str]:
        """record's tokens as text, by the table."""
        tokens, feed = record.tokens, choice.detokenizer.feed
        texts = [feed([token]) for token in tokens] if len(tokens) > 1 and choice.token_by_token else [feed(tokens)]
        if record.reason is not None:
            texts[-1] += choice.detokenizer.flush()
        return texts

    async def _decoded(self, choice: OutputDecoder, record: Tokens) -> list[str]:
        """record's tokens as text, by the engine and all together, where the table is not exact."""
        assert choice.window is not None
        final = record.reason is not None
        return [await choice.window.feed(record.tokens, final, choice.skip_special, self._engine.decode)]

    def end_after(self, timeout_s: float, began: float) -> None:
        """End with a RequestTimeout unless finished timeout_s after began (of time.monotonic)."""
        left_s = began + timeout_s - time.monotonic()
        self._deadline = asyncio.get_running_loop().call_later(left_s, self._expire, timeout_s)

    def _expire(self, timeout_s: float) -> None:
        self._reply.abort(RequestTimeout(f"the request took longer than this server's limit of {timeout_s:g} s"))

    async def aclose(self) -> None:
        """Cancel in the engine whatever has not finished; idempotent."""
        if self._deadline is not None:
            self._deadline.cancel()
        self._reply.close()
        if self._on_close is not None:
            on_close, self._on_close = self._on_close, None
            on_close(self._course(), self.pace)

    def finish_early(self) -> None:
        """Nothing more of it is wanted: what has not finished ends here as if the model had stopped."""
        for choice in self._choices:
            choice.finish = choice.finish or "stop"

    def _course(self) -> GenerationRecord:
        now, first, usage = time.monotonic(), self._first_token, self.usage
        unfinished = "error" if self._error else "abort"
        return GenerationRecord(
            engine_id=self._reply.id,
            prompt_tokens=usage.prompt_tokens,
            completion_tokens=usage.completion_tokens,
            ttft_s=None if first is None else first - self.asked,
            seconds=now - self.asked,
            decode_s=0.0 if first is None else now - first,
            finishes=tuple(choice.finish or unfinished for choice in self._choices),
            error=self._error,
            cached_tokens=usage.cached_tokens,
        )


class GenerationGroup:
    """Several generations as one: choice i of generation g is choice g * n + i. Answers come as they are ready."""

    def __init__(self, generations: list[Generation], n: int) -> None:
        self._generations = generations
        self._n = n
        self._waiting: dict[asyncio.Future[list[Delta]], int] = {}
        self._started = False

    @property
    def usage(self) -> Usage:
        """Token counts so far, over all generations."""
        parts = [g.usage for g in self._generations]
        return Usage(
            sum(u.prompt_tokens for u in parts),
            sum(u.completion_tokens for u in parts),
            sum(u.reasoning_tokens for u in parts),
            None if any(u.cached_tokens is None for u in parts) else sum(u.cached_tokens or 0 for u in parts),
        )

    def __aiter__(self) -> GenerationGroup:
        return self

    async def __anext__(self) -> list[Delta]:
        if not self._started:
            self._started = True
            for g in range(len(self._generations)):
                self._wait_for(g)
        while self._waiting:
            done, _ = await asyncio.wait(self._waiting, return_when=asyncio.FIRST_COMPLETED)
            if deltas := [delta for future in done for delta in self._collect(future)]:
                return deltas
        raise StopAsyncIteration

    def _wait_for(self, g: int) -> None:
        self._waiting[asyncio.ensure_future(_next_or_empty(self._generations[g]))] = g

    def _collect(self, future: asyncio.Future[list[Delta]]) -> list[Delta]:
        g = self._waiting.pop(future)
        deltas = future.result()
        if deltas:
            self._wait_for(g)
        for delta in deltas:
            delta.index += g * self._n
        return deltas

    async def aclose(self) -> None:
        """Close every generation; idempotent."""
        for future in self._waiting:
            future.cancel()
        if self._waiting:
            await asyncio.wait(self._waiting)
            for future in self._waiting:
                future.cancelled() or future.exception()
            self._waiting.clear()
        for generation in self._generations:
            await generation.aclose()


async def _next_or_empty(generation: Generation) -> list[Delta]:
    # A task cannot end with StopAsyncIteration; a generation never yields an empty list.
    try:
        return await generation.__anext__()
    except StopAsyncIteration:
        return []
