"""A running request: the engine's tokens become deltas of choices. Knows no HTTP and no JSON bodies.

There is one stream path: Generation is one accepted request, GenerationGroup is several as one, and a unary response is
the stream read to its end (collect). Closing a generation is the only way to stop it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from typing import Protocol

from ..engine.client.engine import Engine, ReplyStream
from ..engine.protocol import Tokens
from ..errors import RequestError, RequestTimeout
from ..observability.metrics import TokenTimer
from ..observability.records import GenerationRecord
from ..push_types import Pushing, Sink
from ..timing_types import PromptProgress, Timings
from ..types import Delta, TokenLogprob, Usage
from .output_decoder import OutputDecoder


class DeltaStream(Protocol):
    """What endpoints use of a running generation or a group of them."""

    @property
    def usage(self) -> Usage: ...

    @property
    def timings(self) -> Timings: ...

    def __aiter__(self) -> AsyncIterator[list[Delta]]: ...

    async def __anext__(self) -> list[Delta]: ...

    def wake(self) -> None:
        """Let a reader that waits go on with an empty list. No effect if there is something to read."""

    async def aclose(self) -> None: ...


OnClose = Callable[[GenerationRecord, "TokenTimer | None"], None]
"""Called once, when a generation is closed."""


class Generation(Pushing[list[Delta]]):
    """One accepted request. Iterate for new deltas; close it in any case, read to the end or not."""

    def __init__(
        self,
        engine: Engine,
        reply: ReplyStream,
        decoders: list[OutputDecoder],
        on_close: OnClose,
        *,
        requested_at: float,
        token_timer: TokenTimer | None = None,
        warnings: Sequence[str] = (),
        progress: bool = False,
    ) -> None:
        """requested_at: of time.monotonic. warnings: what of the request could not be honoured.

        progress: there are deltas with the progress of the prompt.
        """
        self.warnings = list(warnings)
        self._progress = progress
        self._engine = engine
        self._reply = reply
        self._decoders = decoders
        self._on_close: OnClose | None = on_close
        self._requested_at = requested_at
        self._token_timer = token_timer
        self._first_token_at: float | None = None
        self._error = ""
        self._deadline: asyncio.TimerHandle | None = None
        self._woken = False
        self._push: Callable[[list[Delta]], None]
        self._broken: Exception | None = None  # what a push raised
        self._prompt_entries: list[TokenLogprob] | None = None

    @property
    def prompt_tokens(self) -> int:
        """Tokens of the prompt, those of its images included."""
        return self._reply.prompt_tokens

    @property
    def prompt_ids(self) -> list[int]:
        """The prompt's token ids, if the generation was started with echo."""
        return self._reply.tokens or []

    @property
    def prompt_scored(self) -> bool:
        """The log probabilities of the prompt have arrived: with the first choice's first tokens."""
        return self._reply.prompt_logprobs is not None

    def prompt_entries(self) -> list[TokenLogprob]:
        """The prompt's tokens with their log probabilities; those are known with the first delta, if asked for."""
        if self._prompt_entries is not None:
            return self._prompt_entries
        known, ids, entry = self._reply.prompt_logprobs, self.prompt_ids, self._decoders[0].entry
        if known is None:
            return [entry(token, None) for token in ids]
        entries = [entry(token, logprob) for token, logprob in zip(ids, known.logprobs, strict=True)]
        for scored, rank, others in zip(entries[1:], known.ranks, known.top, strict=False):
            scored.rank, scored.top = rank, [entry(int(token), logprob) for token, logprob in others]
        self._prompt_entries = entries  # each choice of n shows them
        return entries

    async def prompt_text(self, skip_special_tokens: bool) -> str:
        """The prompt's ids as text, by the tokenizer that made them. Raises RequestError."""
        return await self._engine.decode(self.prompt_ids, skip_special_tokens)

    @property
    def usage(self) -> Usage:
        """Token counts so far."""
        return Usage(
            self.prompt_tokens,
            sum([decoder.tokens for decoder in self._decoders]),
            sum([decoder.reasoning_tokens for decoder in self._decoders]),
            self._reply.cached_tokens,
        )

    @property
    def timings(self) -> Timings:
        """Times so far."""
        usage, first = self.usage, self._first_token_at
        cached = usage.cached_tokens or 0
        return Timings(
            cached=cached,
            prompt=usage.prompt_tokens - cached,
            prompt_ms=self._reply.prefill_ms or 0.0,
            predicted=usage.completion_tokens,
            predicted_ms=0.0 if first is None else 1000 * (time.monotonic() - first),
            queue_ms=1000 * (self._queue_s or 0.0),
        )

    @property
    def _queue_s(self) -> float | None:
        """From the request to the begin of its prefill; None until that is computed."""
        first, prefill_ms = self._first_token_at, self._reply.prefill_ms
        if first is None or prefill_ms is None:
            return None
        return max(0.0, first - self._requested_at - prefill_ms / 1000)

    def __aiter__(self) -> Generation:
        return self

    async def __anext__(self) -> list[Delta]:
        # One coroutine and not one per layer: each costs 0.4 us a token and the way back up through it.
        try:
            while (records := self._reply.poll()) is None:
                if self._woken or self._reply.progressed:
                    self._woken = False
                    return self._prompt_progress()
                await self._reply.wait()
                if self._broken is not None:
                    raise self._broken
        except RequestError as error:
            self._error = error.code or error.kind
            raise
        if not records:
            raise StopAsyncIteration
        deltas = self._arrived(records)
        for record in records:
            decoder = self._decoders[record.index]
            if decoder.window is None:
                deltas.append(self._read(decoder, record))
            else:
                delta = decoder.decode(record, await self._decoded(decoder, record))
                deltas.append(self._checked(decoder, record, delta))
        return deltas

    def _read(self, decoder: OutputDecoder, record: Tokens) -> Delta:
        return self._checked(decoder, record, decoder.read(record))

    def _checked(self, decoder: OutputDecoder, record: Tokens, delta: Delta) -> Delta:
        """The delta of a record; the choice ends where it completed a stop string, which the engine does not know."""
        if decoder.finish and record.reason is None:
            self._reply.cancel(decoder.index)
        return delta

    def push_to(self, sink: Sink[list[Delta]]) -> None:
        """Unless the engine decodes their texts."""
        if all(decoder.window is None for decoder in self._decoders):
            self._push = sink.push
            self._reply.push_to(Sink(sink.ready, self._push_records))

    def _push_records(self, records: list[Tokens]) -> None:
        """Push what `__anext__` would return. What is raised here is raised there: the reader waits."""
        try:
            deltas = self._arrived(records)
            deltas += [self._read(self._decoders[record.index], record) for record in records]
            self._push(deltas)
        except Exception as error:
            self._broken = error
            self._reply.wake()

    def _arrived(self, records: list[Tokens]) -> list[Delta]:
        """Take the time of new tokens; the progress of the prompt with the first ones."""
        deltas: list[Delta] = []
        if self._first_token_at is None:
            self._first_token_at = time.monotonic()
            deltas = self._prompt_progress()
        if self._token_timer is not None:
            self._token_timer.observe(max([len(record.tokens) for record in records]))
        return deltas

    def _prompt_progress(self) -> list[Delta]:
        """A delta with the progress of the prompt, if there is a new report and it is wanted."""
        record, new = self._reply.progress, self._reply.progressed and self._progress
        self._reply.progressed = False
        if record is None or not new:
            return []
        return [Delta(0, progress=PromptProgress(self.prompt_tokens, record.cached, record.tokens, record.ms))]

    async def _decoded(self, decoder: OutputDecoder, record: Tokens) -> list[str]:
        """The record's tokens as one text, by the engine: the table is not exact."""
        assert decoder.window is not None
        final = record.reason is not None
        return [await decoder.window.feed(record.tokens, final, decoder.skip_special, self._engine.decode)]

    def end_after(self, timeout_s: float) -> None:
        """End with a RequestTimeout unless finished timeout_s after the request."""
        left_s = self._requested_at + timeout_s - time.monotonic()
        self._deadline = asyncio.get_running_loop().call_later(left_s, self._expire, timeout_s)

    def _expire(self, timeout_s: float) -> None:
        self._reply.abort(RequestTimeout(f"the request took longer than this server's limit of {timeout_s:g} s"))

    def wake(self) -> None:
        """Let a reader that waits go on with an empty list. No effect if there is something to read."""
        self._woken = True
        self._reply.wake()

    async def aclose(self) -> None:
        """Cancel what has not finished in the engine. Idempotent."""
        if self._deadline is not None:
            self._deadline.cancel()
        self._reply.close()
        if self._on_close is not None:
            on_close, self._on_close = self._on_close, None
            on_close(self._record(), self._token_timer)

    def finish_early(self) -> None:
        """End every unfinished choice here, as if the model had stopped."""
        for decoder in self._decoders:
            decoder.finish = decoder.finish or "stop"

    def _record(self) -> GenerationRecord:
        now, first, usage = time.monotonic(), self._first_token_at, self.usage
        unfinished, absent = "error" if self._error else "abort", self._reply.absent
        return GenerationRecord(
            engine_id=self._reply.id,
            prompt_tokens=usage.prompt_tokens,
            completion_tokens=usage.completion_tokens,
            ttft_s=None if first is None else first - self._requested_at,
            seconds=now - self._requested_at,
            decode_s=0.0 if first is None else now - first,
            finish_reasons=tuple(d.finish or unfinished for d in self._decoders[: len(self._decoders) - absent]),
            error=self._error,
            cached_tokens=usage.cached_tokens,
            queue_s=self._queue_s,
        )


class GenerationGroup(Pushing[list[Delta]]):
    """Several generations as one: choice i of generation g is choice g * n + i. Deltas come as they are ready."""

    def __init__(self, generations: list[Generation], n: int) -> None:
        self._generations = generations
        self._n = n
        self._waiting: dict[asyncio.Future[list[Delta] | None], int] = {}
        self._started = False
        self._woken = False

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

    @property
    def timings(self) -> Timings:
        """Of all generations: the tokens of all, and the longest times."""
        parts = [g.timings for g in self._generations]
        return Timings(
            cached=sum(t.cached for t in parts),
            prompt=sum(t.prompt for t in parts),
            prompt_ms=max(t.prompt_ms for t in parts),
            predicted=sum(t.predicted for t in parts),
            predicted_ms=max(t.predicted_ms for t in parts),
            queue_ms=max(t.queue_ms for t in parts),
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
            deltas = [delta for future in done for delta in self._collect(future)]
            if deltas or self._woken:
                self._woken = False
                return deltas
        raise StopAsyncIteration

    def wake(self) -> None:
        """As Generation.wake."""
        if self._waiting:
            self._woken = True
            self._generations[min(self._waiting.values())].wake()

    def push_to(self, sink: Sink[list[Delta]]) -> None:
        """The deltas of each generation as they come."""
        for g, generation in enumerate(self._generations):
            generation.push_to(Sink(sink.ready, partial(self._push, sink, g)))

    def _push(self, sink: Sink[list[Delta]], g: int, deltas: list[Delta]) -> None:
        for delta in deltas:
            delta.index += g * self._n
        sink.push(deltas)

    def _wait_for(self, g: int) -> None:
        self._waiting[asyncio.ensure_future(_next_or_none(self._generations[g]))] = g

    def _collect(self, future: asyncio.Future[list[Delta] | None]) -> list[Delta]:
        g = self._waiting.pop(future)
        deltas = future.result()
        if deltas is None:
            return []
        self._wait_for(g)
        for delta in deltas:
            delta.index += g * self._n
        return deltas

    async def aclose(self) -> None:
        """Close every generation. Idempotent."""
        for future in self._waiting:
            future.cancel()
        if self._waiting:
            await asyncio.wait(self._waiting)
            for future in self._waiting:
                future.cancelled() or future.exception()
            self._waiting.clear()
        for generation in self._generations:
            await generation.aclose()


def joined(generations: list[Generation], n: int) -> Generation | GenerationGroup:
    """The generations as one; one alone needs no group, whose tasks would take twelve turns of the loop."""
    return generations[0] if len(generations) == 1 else GenerationGroup(generations, n)


async def _next_or_none(generation: Generation) -> list[Delta] | None:
    """The next deltas, None at the end: a task cannot end with StopAsyncIteration."""
    try:
        return await generation.__anext__()
    except StopAsyncIteration:
        return None
