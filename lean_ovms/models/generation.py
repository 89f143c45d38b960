"""A running request, which turns the engine's tokens into deltas of choices. Independent of HTTP and JSON bodies.

Generation is one accepted request. It pushes its deltas to a Sink; for a unary response they are collected (collect).
Closing it is the only way to stop it.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import TYPE_CHECKING, Protocol, cast

from ..engine.client.replies import ReplyStream
from ..engine.protocol import REPETITION, DetailedTokens, Progress, SpokenTokens, Tokens
from ..errors import RequestError, too_slow
from ..observability.records import GenerationRecord, TokenTimer
from ..text.decode.detokenizer import Detokenizer, WindowDetokenizer
from ..types import (
    Delta,
    Event,
    PromptProgress,
    Reasoning,
    Text,
    Timings,
    TokenLogprob,
    ToolCallDelta,
    ToolCallStart,
    Usage,
)
from ..types.push import Paused, Sink, never

if TYPE_CHECKING:
    from ..engine.client.interface import ModelEngine
    from ..text.decode.stop_strings import StopMatcher


class DeltaStream(Protocol):
    """The interface of a running generation, or of a group of them, that endpoints use."""

    @property
    def usage(self) -> Usage: ...

    @property
    def timings(self) -> Timings: ...

    async def push_to(self, sink: Sink[list[Delta]]) -> None:
        """Pushes the deltas as they arrive, and returns after the last one. Raises RequestError."""

    def finish(self, reason: str) -> None:
        """Ends every unfinished choice with this finish reason. Nothing more is pushed."""

    async def aclose(self) -> None: ...


class WrappedStream:
    """A DeltaStream that modifies the deltas of another one; a subclass does this in push_to."""

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
"""The type of a function that is called once, when a generation is closed."""


class Generation:
    """The DeltaStream of one accepted request. It must be closed, whether or not it was pushed to its end."""

    def __init__(
        self,
        engine: ModelEngine,
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
        """Creates the object for the answer to a request that the engine has accepted.

        Args:
            engine: The engine, which decodes texts if a decoder cannot.
            reply: The stream of the engine's replies.
            decoders: The decoder of each choice.
            on_close: Called once, when the generation is closed.
            requested_at: The time at which the request arrived, by time.monotonic.
            token_timer: Measures the time of each token.
            warnings: Warnings about parts of the request that have no effect.
            progress: Whether there are deltas with the progress of the prompt.
            prompt: The text of the prompt, if it must be kept.
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
        """The number of prompt tokens, including those of images."""
        return self._reply.prompt_tokens

    @property
    def prompt_ids(self) -> list[int]:
        """The prompt's token ids, if the generation was started with echo."""
        return self._reply.tokens or []

    @property
    def prompt_scored(self) -> bool:
        """Whether the log probabilities of the prompt have arrived, with the first tokens of the first choice."""
        return self._reply.prompt_logprobs is not None

    def prompt_entries(self) -> list[TokenLogprob]:
        """Returns the prompt's tokens, with their log probabilities if requested, from the first delta on."""
        if self._prompt_entries is not None:
            return self._prompt_entries
        known, ids, entry = self._reply.prompt_logprobs, self.prompt_ids, self._decoders[0].entry
        if known is None:
            return [entry(token, None) for token in ids]
        entries = [entry(token, logprob) for token, logprob in zip(ids, known.logprobs, strict=True)]
        for scored, rank, others in zip(entries[1:], known.ranks, known.top, strict=False):
            scored.rank, scored.top = rank, [entry(int(token), logprob) for token, logprob in others]
        self._prompt_entries = entries  # each of n choices has them
        return entries

    async def prompt_text(self, skip_special_tokens: bool) -> str:
        """Returns the text of the prompt's token ids, from the tokenizer that made them. Raises RequestError."""
        return await self._engine.decode(self.prompt_ids, skip_special_tokens)

    @property
    def usage(self) -> Usage:
        """The token counts so far."""
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
        """The seconds from the request to the beginning of its prefill; None until the prompt is computed."""
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
        """Returns the delta of a record, and ends the choice in the engine if the delta completes a stop string.

        The engine itself does not know the stop strings.
        """
        if isinstance(record, SpokenTokens):
            delta.audio = record.audio
        if decoder.finish and record.reason is None:
            self._reply.cancel(decoder.index)
        return delta

    def _decode_records(self, records: list[Tokens]) -> None:
        """Pushes deltas whose text the engine decodes, as the vocabulary is not exact; meanwhile new tokens wait."""
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
        """Records the arrival of tokens; returns a delta with the prompt's progress if that is new and requested."""
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
        """Ends the generation with a RequestTimeout unless it finishes within timeout_s seconds of the request."""
        left_s = self._requested_at + timeout_s - time.monotonic()
        self._deadline = asyncio.get_running_loop().call_later(left_s, self._reply.abort, too_slow())

    async def aclose(self) -> None:
        """Cancels the unfinished choices in the engine. Idempotent."""
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


def total_usage(parts: Sequence[Usage]) -> Usage:
    """Returns the sum of token counts; that of cached tokens is None unless all are known."""
    return Usage(
        sum(u.prompt_tokens for u in parts),
        sum(u.completion_tokens for u in parts),
        sum(u.reasoning_tokens for u in parts),
        None if any(u.cached_tokens is None for u in parts) else sum(u.cached_tokens or 0 for u in parts),
    )


class AnswerParser(Protocol):
    """Parses the text of one choice. The events add up to the same answer, however the text is divided."""

    def feed(self, text: str) -> list[Event]:
        """Returns the events of more text. Text that may be the beginning of markup is held back."""

    def finish(self, ended_by: str = "") -> list[Event]:
        """Returns the events of the text that was held back, at the end. They include an incomplete tool call.

        `ended_by` is the special token that ended the text. It may end a call or reasoning, and is never shown.
        """


class CallArguments:
    """Checks whether the arguments of all calls of an answer are JSON objects. Those of an incomplete call are not."""

    def __init__(self) -> None:
        self._pieces: list[str] | None = None  # of the last call
        self._broken = False

    def add(self, event: Event) -> None:
        """Adds the next event of the answer."""
        if isinstance(event, ToolCallDelta) and self._pieces is not None:
            self._pieces.append(event.text)
        elif isinstance(event, ToolCallStart):
            self._broken = self.broken()
            self._pieces = []

    def broken(self) -> bool:
        """Returns whether the arguments of a call are not a JSON object, including those of the last call so far."""
        if self._broken or self._pieces is None:
            return self._broken
        try:
            return not isinstance(json.loads("".join(self._pieces)), dict)
        except (ValueError, RecursionError):
            return True


REPETITION_DETECTED = "repetition_detected"
"""vLLM's stop_reason for a text that ends because it repeats itself."""


@dataclass(slots=True, kw_only=True)
class OutputDecoder:
    """Turns the tokens of one choice into deltas, with its detokenizer, stop strings and parser.

    This is the hot path: it runs once per token.
    """

    index: int
    """The number of the choice."""
    detokenizer: Detokenizer
    """The detokenizer, which decodes tokens with the vocabulary."""
    window: WindowDetokenizer | None
    """The detokenizer that asks the engine, for models whose vocabulary is not exact; None for others."""
    skip_special: bool
    """Whether that one leaves out special tokens."""
    stops: StopMatcher | None
    """The stop strings; None without any."""
    parser: AnswerParser | None
    """The parser of reasoning and tool calls; None if the text is passed on as it is."""
    min_tokens: int
    """The number of tokens at the beginning in which stop strings are ignored."""
    stop_ids: frozenset[int]
    """The ids of the request's stop tokens, which are reported as the stop reason."""
    special: frozenset[int]
    """The ids of the model's special tokens."""
    ended_by: str = ""
    """The text of the special token that ended the choice; "" for none."""
    tokens: int = 0
    """The number of tokens so far."""
    reasoning_tokens: int = 0
    """The number of these that are reasoning."""
    thinking: bool = False
    """Whether the latest event is reasoning."""
    finish: str = ""
    """The finish reason; "" while the choice continues."""
    _arguments: CallArguments = field(default_factory=CallArguments)  # of its tool calls
    _plain: bool = field(init=False)  # whether all of its text is plain

    def __post_init__(self) -> None:
        self._plain = self.stops is None and self.parser is None

    def read(self, record: Tokens) -> Delta:
        """Returns the delta of a record, decoded with the vocabulary."""
        tokens, feed = record.tokens, self.detokenizer.feed
        if self._plain:
            text = feed(tokens)
            if record.reason is None and record.logprobs is None:  # nearly every token
                self.tokens += len(tokens)
                return Delta(self.index, [Text(text)] if text else [], tokens)
            texts = [text]
        else:  # one by one, so that counts do not depend on how they were batched
            texts = [feed([token]) for token in tokens] or [""]
        if record.reason is not None:
            texts[-1] += self.detokenizer.flush()
        return self.decode(record, texts)

    def decode(self, record: Tokens, texts: list[str]) -> Delta:
        """Returns the delta of a record of new tokens, with the text of each, or one text of all."""
        size = len(record.tokens)
        delta = Delta(self.index)
        step = 1 if len(texts) == size else size
        done = 0
        for text in texts:
            done += step
            self.tokens += step
            if done == size and record.reason is not None:
                self._finish(delta, record)
            if self.stops is not None and self.tokens > self.min_tokens:
                text = self._until_stop(delta, self.stops, text)
            self._parse(delta, text, step)
            if delta.finish is not None:
                self.finish = delta.finish
                break
        delta.tokens = record.tokens[:done]
        if record.logprobs is not None:
            delta.logprobs = [self.entry(t, p) for t, p in zip(delta.tokens, record.logprobs, strict=False)]
            if isinstance(record, DetailedTokens):
                for scored, others in zip(delta.logprobs, record.top, strict=False):
                    scored.top = [self.entry(int(token), logprob) for token, logprob in others]
        return delta

    def _finish(self, delta: Delta, record: Tokens) -> None:
        delta.finish = record.reason
        if record.reason == REPETITION:
            delta.finish, delta.stop = "stop", REPETITION_DETECTED
            return
        last = record.tokens[-1] if record.tokens else None
        if record.reason != "stop" or last is None:
            return
        if last in self.stop_ids:
            delta.stop = last
        if last in self.special:
            self.ended_by = self.detokenizer.piece(last).decode("utf-8", "replace")

    @staticmethod
    def _until_stop(delta: Delta, stops: StopMatcher, text: str) -> str:
        text, matched = stops.feed(text)
        if matched is not None:
            delta.finish, delta.stop = "stop", matched
        elif delta.finish:
            text += stops.flush()
        return text

    def _parse(self, delta: Delta, text: str, tokens: int) -> None:
        if self.parser is None:
            if text:
                delta.events.append(Text(text))
            return
        ended_by = ""
        if self.ended_by and text.endswith(self.ended_by):
            ended_by, text = self.ended_by, text.removesuffix(self.ended_by)
        events = self.parser.feed(text) if text else []
        if delta.finish:
            events += self.parser.finish(ended_by)
        for event in events:
            self.thinking = isinstance(event, Reasoning)
            self._arguments.add(event)
            _append(delta.events, event)
        if delta.finish:
            delta.broken_call = self._arguments.broken()
        # A token without text yet (a part of a tag or of a character) counts as the same kind as the text before it.
        self.reasoning_tokens += tokens * self.thinking

    def entry(self, token: int, logprob: float | None) -> TokenLogprob:
        data = self.detokenizer.piece(token)
        # A positive value is the engine's placeholder for "not known".
        known = logprob is not None and logprob <= 0
        return TokenLogprob(token, data.decode("utf-8", "replace"), data, logprob if known else None)


def _append(events: list[Event], event: Event) -> None:
    """Appends an event, or merges it with the last one if that is of the same kind and tool call."""
    last = events[-1] if events else None
    joins = type(last) is type(event) and not isinstance(event, ToolCallStart)
    if joins and isinstance(event, ToolCallDelta):
        joins = cast(ToolCallDelta, last).index == event.index
    if joins:
        cast(Text, last).text += cast(Text, event).text
    else:
        events.append(event)


@dataclass(slots=True)
class Call:
    """A complete tool call."""

    id: str
    """The id of the call."""
    name: str
    """The name of the function."""
    arguments: str = ""
    """The arguments as JSON text, as the model wrote them."""


@dataclass(slots=True)
class CompletedChoice:
    """A completed choice, with all its deltas joined."""

    text: str = ""
    """The text without reasoning and calls."""
    reasoning: str = ""
    """The reasoning."""
    calls: list[Call] = field(default_factory=list)
    """The tool calls, in order."""
    tokens: list[int] = field(default_factory=list)
    """The ids of all tokens."""
    logprobs: list[TokenLogprob] = field(default_factory=list)
    """The log probability of each token, if requested."""
    audio: list[bytes] = field(default_factory=list)
    """The audio samples of each delta that has any, in the form of types.audio."""
    finish: str = "stop"
    """The finish reason; "" if the choice does not exist, since a beam search found fewer texts."""
    stop: str | int | None = None
    """The stop string or token id that ended the choice, if any."""
    broken_call: bool = False
    """Whether the arguments of any of its tool calls are not a JSON object."""


class Collector:
    """Collects the choices of a generation."""

    def __init__(self, choices: int) -> None:
        self._choices = [CompletedChoice(finish="") for _ in range(choices)]
        self._events: list[list[Event]] = [[] for _ in self._choices]
        self._begun: set[int] = set()

    def add(self, deltas: list[Delta]) -> None:
        for delta in deltas:
            choice = self._choices[delta.index]
            self._begun.add(delta.index)
            self._events[delta.index] += delta.events
            choice.tokens += delta.tokens
            choice.logprobs += delta.logprobs
            choice.audio += [delta.audio] * bool(delta.audio)
            choice.finish = delta.finish or choice.finish
            choice.stop = delta.stop if delta.finish else choice.stop
            choice.broken_call = choice.broken_call or delta.broken_call

    def choices(self, *, ended: bool) -> list[CompletedChoice]:
        """Returns the choices collected so far, to which no further delta is added if they have ended."""
        for index, (choice, events) in enumerate(zip(self._choices, self._events, strict=True)):
            _add(choice, events)
            events.clear()
            if ended and index in self._begun:
                choice.finish = choice.finish or "stop"
        return self._choices


async def collect(generation: DeltaStream, choices: int) -> list[CompletedChoice]:
    """Pushes a generation to its end, and returns the completed choices. Raises RequestError."""
    collector = Collector(choices)
    await generation.push_to(Sink(collector.add))
    return collector.choices(ended=True)


def _add(choice: CompletedChoice, events: list[Event]) -> None:
    choice.text += "".join(e.text for e in events if isinstance(e, Text))
    choice.reasoning += "".join(e.text for e in events if isinstance(e, Reasoning))
    choice.calls += [Call(e.id, e.name) for e in events if isinstance(e, ToolCallStart)]
    for index, deltas in groupby((e for e in events if isinstance(e, ToolCallDelta)), lambda e: e.index):
        choice.calls[index].arguments += "".join(e.text for e in deltas)
