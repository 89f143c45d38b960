"""A running request: the engine's tokens become deltas of choices. Knows no HTTP and no JSON bodies.

Generation is one accepted request, GenerationGroup is several as one; both push their deltas to a Sink, which for a
unary response collects them (collect). Closing a generation is the only way to stop it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

from ..engine.client.engine import EngineClient, ReplyStream
from ..engine.protocol import Progress, SpokenTokens, Tokens
from ..errors import RequestError, RequestTimeout
from ..observability.metrics import TokenTimer
from ..observability.records import GenerationRecord
from ..types import Delta, PromptProgress, Timings, TokenLogprob, Usage
from ..types.push import Paused, Sink, never
from .output_decoder import OutputDecoder


class DeltaStream(Protocol):
    """What endpoints use of a running generation or a group of them."""

    @property
    def usage(self) -> Usage: ...

    @property
    def timings(self) -> Timings: ...

    async def push_to(self, sink: Sink[list[Delta]]) -> None:
        """Push the deltas as they come; returns after the last. Raises RequestError."""

    def finish(self, reason: str) -> None:
        """End every unfinished choice here, with this reason. Nothing more is pushed."""

    async def aclose(self) -> None: ...


class WrappedStream:
    """A DeltaStream of the deltas of another one, which a subclass changes in push_to."""

    def __init__(self, stream: DeltaStream) -> None:
        self._stream = stream

    @property
    def usage(self) -> Usage:
        return self._stream.usage

    @property
    def timings(self) -> Timings:
        return self._stream.timings

    def finish(self, reason: str) -> None:
        self._stream.finish(reason)

    async def aclose(self) -> None:
        await self._stream.aclose()


OnClose = Callable[[GenerationRecord, "TokenTimer | None"], None]
"""Called once, when a generation is closed."""


class Generation:
    """One accepted request, a DeltaStream. Closed in any case, pushed to its end or not."""

    def __init__(
        self,
        engine: EngineClient,
        reply: ReplyStream,
        decoders: list[OutputDecoder],
        on_close: OnClose,
        *,
        requested_at: float,
        token_timer: TokenTimer | None = None,
        warnings: Sequence[str] = (),
        progress: bool = False,
        prompt: str = "",
    ) -> None:
        """requested_at: of time.monotonic. warnings: what of the request could not be honoured.

        progress: there are deltas with the progress of the prompt. prompt: its text, if it is to be kept.
        """
        self.prompt = prompt
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
        self._push: Callable[[list[Delta]], object]
        self._paused: Paused = never  # of the sink
        self._decoding: asyncio.Future[None] | None = None  # of a text that the engine decodes
        self._shown: Progress | None = None
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
        usage, first = self.usage, self._first_token_at
        cached = usage.cached_tokens or 0
        return Timings(
            cached=cached,
            prompt=usage.prompt_tokens - cached,
            prompt_ms=self._reply.prefill_ms or 0.0,
            predicted=usage.completion_tokens,
            predicted_ms=0.0 if first is None else 1000 * (time.monotonic() - first),
            queue_ms=1000 * (self._queue_s or 0.0),
            drafted=self._reply.drafted,
            accepted=self._reply.accepted,
        )

    @property
    def _queue_s(self) -> float | None:
        """From the request to the begin of its prefill; None until that is computed."""
        first, prefill_ms = self._first_token_at, self._reply.prefill_ms
        if first is None or prefill_ms is None:
            return None
        return max(0.0, first - self._requested_at - prefill_ms / 1000)

    async def push_to(self, sink: Sink[list[Delta]]) -> None:
        self._push, self._paused = sink.push, sink.paused
        try:
            if all(decoder.window is None for decoder in self._decoders):
                await self._reply.push_to(Sink(self._push_records, sink.paused))
            else:
                await self._reply.push_to(Sink(self._decode_records, self._decoding_or_paused))
        except RequestError as error:
            self._error = error.code or error.kind
            raise

    def _push_records(self, records: list[Tokens]) -> None:
        deltas = self._arrived(records)
        for record in records:
            decoder = self._decoders[record.index]
            deltas.append(self._checked(decoder, record, decoder.read(record)))
        self._push(deltas)

    def _checked(self, decoder: OutputDecoder, record: Tokens, delta: Delta) -> Delta:
        """The delta of a record; the choice ends where it completed a stop string, which the engine does not know."""
        if isinstance(record, SpokenTokens):
            delta.audio = record.audio
        if decoder.finish and record.reason is None:
            self._reply.cancel(decoder.index)
        return delta

    def _decode_records(self, records: list[Tokens]) -> None:
        """Pushes deltas whose text the engine decodes, since the table is not exact. New tokens wait meanwhile."""
        self._decoding = asyncio.ensure_future(self._push_decoded(records))

    def _decoding_or_paused(self) -> asyncio.Future[None] | None:
        decoding = self._decoding
        return self._paused() if decoding is None or decoding.done() else decoding

    async def _push_decoded(self, records: list[Tokens]) -> None:
        deltas = self._arrived(records)
        try:
            for record in records:
                decoder = self._decoders[record.index]
                assert decoder.window is not None
                final, skip = record.reason is not None, decoder.skip_special
                text = await decoder.window.feed(record.tokens, final, skip, self._engine.decode)
                deltas.append(self._checked(decoder, record, decoder.decode(record, [text])))
            self._push(deltas)
        except Exception as error:
            self._reply.break_off(error)

    def _arrived(self, records: list[Tokens]) -> list[Delta]:
        """Take the time of new tokens. Returns a delta with the progress of the prompt if that is new and wanted."""
        if records:
            if self._first_token_at is None:
                self._first_token_at = time.monotonic()
            if self._token_timer is not None:
                self._token_timer.observe(max([len(record.tokens) for record in records]))
        progress = self._reply.progress
        if progress is self._shown:
            return []
        self._shown = progress
        if progress is None or not self._progress:
            return []
        return [Delta(0, progress=PromptProgress(self.prompt_tokens, progress.cached, progress.tokens, progress.ms))]

    def end_after(self, timeout_s: float) -> None:
        """End with a RequestTimeout unless finished timeout_s after the request."""
        left_s = self._requested_at + timeout_s - time.monotonic()
        error = RequestTimeout(f"the request took longer than this server's limit of {timeout_s:g} s")
        self._deadline = asyncio.get_running_loop().call_later(left_s, self._reply.abort, error)

    async def aclose(self) -> None:
        """Cancel what has not finished in the engine. Idempotent."""
        if self._deadline is not None:
            self._deadline.cancel()
        if self._decoding is not None:
            self._decoding.cancel()
        self._reply.cancel()
        if self._on_close is not None:
            on_close, self._on_close = self._on_close, None
            on_close(self._record(), self._token_timer)

    def finish(self, reason: str) -> None:
        for decoder in self._decoders:
            decoder.finish = decoder.finish or reason
        self._reply.cancel()

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


class GenerationGroup:
    """Several generations as one: choice i of generation g is choice g * n + i. Deltas come as they are ready."""

    def __init__(self, generations: list[Generation], n: int) -> None:
        self._generations = generations
        self._n = n

    @property
    def usage(self) -> Usage:
        """Token counts so far, over all generations."""
        return total_usage([g.usage for g in self._generations])

    @property
    def timings(self) -> Timings:
        """Token counts summed over all generations, and the longest time of any of them."""
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
            await self.aclose()  # the others push nothing more
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
        """Close every generation. Idempotent."""
        for generation in self._generations:
            await generation.aclose()


def total_usage(parts: Sequence[Usage]) -> Usage:
    """Returns the sums; of cached tokens only where all are known."""
    return Usage(
        sum(u.prompt_tokens for u in parts),
        sum(u.completion_tokens for u in parts),
        sum(u.reasoning_tokens for u in parts),
        None if any(u.cached_tokens is None for u in parts) else sum(u.cached_tokens or 0 for u in parts),
    )


def joined(generations: list[Generation], n: int) -> Generation | GenerationGroup:
    """The generations as one; one alone needs no group, whose tasks would take twelve turns of the loop."""
    return generations[0] if len(generations) == 1 else GenerationGroup(generations, n)
