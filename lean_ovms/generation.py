"""A running request: tokens of the engine become deltas of choices. Knows no HTTP and no JSON bodies.

One stream path: Generation is one accepted request, Batch is several as one, and a whole answer is `fold`, which reads
the stream to its end. Closing a generation is the only way to stop its work.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, cast

from .engine.client import Engine, Reply
from .engine.messages import Tokens
from .engine.on_demand import OnDemand
from .errors import RequestError, RequestTimeout
from .metrics import Pace
from .notes import Course
from .shapes import CallArgs, CallStart, Delta, Event, Reasoning, Text, TokenLogprob, Usage
from .text.detokenizer import Detokenizer, WindowDetokenizer
from .text.stops import StopMatcher

if TYPE_CHECKING:
    from .text.parsers import Parser


@dataclass(slots=True, kw_only=True)
class Choice:
    """The life of one answer: its detokenizer, stop strings, parser, and what was counted."""

    index: int
    detokenizer: Detokenizer
    window: WindowDetokenizer | None
    skip_special: bool
    stops: StopMatcher | None
    parser: Parser | None
    min_tokens: int
    stop_ids: frozenset[int]
    tokens: int = 0
    reasoning_tokens: int = 0
    thinking: bool = False
    finish: str = ""

    @property
    def finished(self) -> bool:
        """Nothing more is told of it."""
        return bool(self.finish)

    @property
    def token_by_token(self) -> bool:
        """Tokens that came together are looked at one by one, so that counts do not depend on how they came."""
        return self.stops is not None or self.parser is not None

    def take(self, record: Tokens, texts: list[str]) -> Delta:
        """A record as what the client gets to know. texts: what each of its tokens says, or what all of them say."""
        size = len(record.tokens)
        if record.reason is None and record.logprobs is None and not self.token_by_token:
            # Nearly every token: nothing to look for in its text, and it goes on. 0.4 us instead of 1.
            self.tokens += size
            return Delta(self.index, [Text(texts[0])] if texts[0] else [], record.tokens)
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
        return delta

    def _finish(self, delta: Delta, record: Tokens) -> None:
        delta.finish = record.reason
        last = record.tokens[-1] if record.tokens else None
        if record.reason == "stop" and last in self.stop_ids:
            delta.stop = last

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
        events = self.parser.feed(text) if text else []
        if delta.finish:
            events += self.parser.finish()
        for event in events:
            self.thinking = isinstance(event, Reasoning)
            _append(delta.events, event)
        # A token that says nothing yet (a part of a tag or of a character) belongs to what was going on.
        self.reasoning_tokens += tokens * self.thinking

    def entry(self, token: int, logprob: float | None) -> TokenLogprob:
        data = self.detokenizer.piece(token)
        # A positive value is the engine's placeholder for "not known" (contract 3.6).
        known = logprob is not None and logprob <= 0
        return TokenLogprob(data.decode("utf-8", "replace"), data, logprob if known else None)


def _append(events: list[Event], event: Event) -> None:
    """Add an event, joined to the last one if it goes on with the same."""
    last = events[-1] if events else None
    joins = type(last) is type(event) and not isinstance(event, CallStart)
    if joins and isinstance(event, CallArgs):
        joins = cast(CallArgs, last).index == event.index
    if joins:
        cast(Text, last).text += cast(Text, event).text
    else:
        events.append(event)


class Stream(Protocol):
    """What an endpoint needs of a running generation, be it one or several."""

    @property
    def usage(self) -> Usage: ...

    def __aiter__(self) -> AsyncIterator[list[Delta]]: ...

    async def __anext__(self) -> list[Delta]: ...

    async def aclose(self) -> None: ...


OnClose = Callable[[Course, "Pace | None"], None]
"""Hears how a generation went, once, when it is closed."""


class Generation:
    """One accepted request. Iterate for what is new; close it in any case, read to the end or not."""

    def __init__(self, engine: Engine | OnDemand, reply: Reply, choices: list[Choice], on_close: OnClose) -> None:
        self.notices: list[str] = []  # what of the request could not be honoured
        self.asked = time.monotonic()  # whoever knows better when it was asked for sets it
        self.pace: Pace | None = None  # as are the gaps between tokens, by who wants to know them
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
                await self._reply.arrival()
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
    def _texts(choice: Choice, record: Tokens) -> list[str]:
        """record's tokens as text, by the table."""
        tokens, feed = record.tokens, choice.detokenizer.feed
        texts = [feed([token]) for token in tokens] if len(tokens) > 1 and choice.token_by_token else [feed(tokens)]
        if record.reason is not None:
            texts[-1] += choice.detokenizer.flush()
        return texts

    async def _decoded(self, choice: Choice, record: Tokens) -> list[str]:
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

    def conclude(self) -> None:
        """Nothing more of it is wanted: what has not finished ends here as if the model had stopped."""
        for choice in self._choices:
            choice.finish = choice.finish or "stop"

    def _course(self) -> Course:
        now, first, usage = time.monotonic(), self._first_token, self.usage
        unfinished = "error" if self._error else "abort"
        return Course(
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


class Batch:
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

    def __aiter__(self) -> Batch:
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


@dataclass(slots=True)
class Call:
    """A tool call, whole."""

    id: str
    name: str
    arguments: str = ""


@dataclass(slots=True)
class Answer:
    """One choice, whole: the fold of its deltas."""

    text: str = ""
    reasoning: str = ""
    calls: list[Call] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    finish: str = "stop"
    stop: str | int | None = None


async def fold(generation: Stream, choices: int) -> list[Answer]:
    """The whole answers: the unary reply is nothing but the stream, read to its end."""
    answers = [Answer() for _ in range(choices)]
    texts: list[list[Event]] = [[] for _ in answers]
    async for deltas in generation:
        for delta in deltas:
            answer = answers[delta.index]
            texts[delta.index] += delta.events
            answer.tokens += delta.tokens
            answer.logprobs += delta.logprobs
            if delta.finish:
                answer.finish, answer.stop = delta.finish, delta.stop
    for answer, events in zip(answers, texts, strict=True):
        _fill(answer, events)
    return answers


def _fill(answer: Answer, events: list[Event]) -> None:
    answer.text = "".join(e.text for e in events if isinstance(e, Text))
    answer.reasoning = "".join(e.text for e in events if isinstance(e, Reasoning))
    answer.calls = [Call(e.id, e.name) for e in events if isinstance(e, CallStart)]
    for index, call in enumerate(answer.calls):
        call.arguments = "".join(e.text for e in events if isinstance(e, CallArgs) and e.index == index)
