"""One loaded model: a prompt in, deltas out. The only place where text meets engine; knows no HTTP and no JSON bodies.

`await model.start(...)` renders, submits and waits until the engine has accepted or refused, so every 4xx and 503
happens before a stream's 200. The Generation then yields what is new; closing it is the only way to stop the work.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Protocol

from .config import Config
from .engine.client import Engine, Reply
from .engine.messages import Tokens
from .errors import RequestTimeout, StartError
from .model_dir import ModelDir
from .model_dir import read as read_model_dir
from .shapes import (
    CallArgs,
    CallStart,
    ChatPrompt,
    Delta,
    EngineStats,
    Event,
    ModelInfo,
    Output,
    Prompt,
    Reasoning,
    Sampling,
    Text,
    TextPrompt,
    TokenLogprob,
    Usage,
)
from .text import parsers
from .text.detokenizer import Detokenizer, WindowDetokenizer
from .text.stops import StopMatcher
from .text.template import ChatTemplate

PROMPT_TAIL = 64
"""Characters of the prompt's end that a parser may look at, to see whether reasoning is already open."""


class Model:
    """A model by name, with its engine child."""

    def __init__(self, config: Config, engine: Engine | None = None) -> None:
        self.name = config.served_name
        self.created = int(time.time())
        self.directory = ModelDir() if config.fake_engine else read_model_dir(config.model_dir)
        self.engine = engine or Engine(config)
        self._config = config
        self._template: ChatTemplate | None = None
        self.tool_parser: str | None = None
        self.reasoning_parser: str | None = None

    async def load(self) -> None:
        """Start the engine and read what only it knows. Raises StartError."""
        info = await self.engine.start()
        self._template = self._make_template(info)
        tool, reasoning = parsers.detect(self._template.source)
        self.tool_parser = _chosen("tool_parser", self._config.tool_parser, tool, parsers.tool_names())
        self.reasoning_parser = _chosen(
            "reasoning_parser", self._config.reasoning_parser, reasoning, parsers.reasoning_names()
        )

    async def stop(self) -> None:
        """Stop the engine child; idempotent."""
        await self.engine.stop()

    @property
    def ready(self) -> bool:
        """Whether requests are served now."""
        return self.engine.state == "ready"

    @property
    def info(self) -> ModelInfo:
        """What the engine said about the model."""
        return self.engine.info

    def render(self, prompt: ChatPrompt) -> str:
        """The text the model would see. Raises BadRequest."""
        if self._template is None:
            raise self.engine.unavailable()
        return self._template.render(prompt)

    async def encode(self, texts: list[str], add_special_tokens: bool) -> list[list[int]]:
        """Token ids of each text. Raises RequestError."""
        return await self.engine.encode(texts, add_special_tokens)

    async def decode(self, tokens: list[int], skip_special_tokens: bool) -> str:
        """The text of these ids, by the model's own detokenizer. Raises RequestError."""
        return await self.engine.decode(tokens, skip_special_tokens)

    def token_strings(self, tokens: list[int]) -> list[str]:
        """Each token's own text; a part of a character shows as U+FFFD."""
        detokenizer = Detokenizer(self.engine.vocabulary, skip_special_tokens=False)
        return [detokenizer.piece(token).decode("utf-8", "replace") for token in tokens]

    async def stats(self) -> EngineStats:
        """The engine's accounts."""
        return await self.engine.stats()

    async def start(
        self, prompt: Prompt, sampling: Sampling, output: Output, *, truncate: int | None = None, echo: bool = False
    ) -> Generation:
        """A running generation. Raises RequestError when the prompt or the engine refuses it.

        truncate: keep only so many last prompt tokens; -1: as many as fit. echo: the generation knows the prompt's
        ids (prompt_ids) once started.
        """
        words, special = self._words(prompt)
        reply = await self.engine.submit(
            words, add_special_tokens=special, truncate=truncate, want_tokens=echo, sampling=sampling
        )
        tail = words[-PROMPT_TAIL:] if isinstance(words, str) else ""
        choices = [self._choice(i, output, sampling, tail) for i in range(sampling.n)]
        return Generation(self.engine, reply, choices, self._config.request_timeout_s)

    def _words(self, prompt: Prompt) -> tuple[str | list[int], bool]:
        if isinstance(prompt, ChatPrompt):
            return self.render(prompt), prompt.add_special_tokens
        if isinstance(prompt, TextPrompt):
            return prompt.text, prompt.add_special_tokens
        return prompt.tokens, False

    def _choice(self, index: int, output: Output, sampling: Sampling, tail: str) -> Choice:
        parser = None
        if output.parse:
            tool = self.tool_parser if output.tools else None
            parser = parsers.make(tool, self.reasoning_parser, tools=list(output.tools), prompt_tail=tail)
        skip = output.skip_special_tokens and not (parser is not None and parser.keep_special_tokens)
        vocabulary = self.engine.vocabulary
        window = None if vocabulary.exact else WindowDetokenizer()
        return Choice(
            index=index,
            detokenizer=Detokenizer(vocabulary, skip),
            window=window,
            skip_special=skip,
            stops=StopMatcher(output.stop, output.include_stop) if output.stop else None,
            parser=parser,
            min_tokens=output.min_tokens,
            stop_ids=frozenset(sampling.stop_token_ids),
        )

    def _make_template(self, info: ModelInfo) -> ChatTemplate:
        return ChatTemplate.load(
            self.directory,
            override=self._config.chat_template,
            from_tokenizer=info.chat_template,
            bos_token=info.bos_token,
            eos_token=info.eos_token,
            content_format=self._config.chat_template_content_format,
        )


def _chosen(option: str, asked: str, detected: str | None, known: list[str]) -> str | None:
    if not asked:
        return detected
    if asked == "none":
        return None
    if asked not in known:
        raise StartError(f"--{option} must be none or one of {', '.join(known)}, not {asked!r}")
    return asked


@dataclass(slots=True, kw_only=True)
class Choice:
    """The life of one answer: its detokenizer, stop strings, parser, and what was counted."""

    index: int
    detokenizer: Detokenizer
    window: WindowDetokenizer | None
    skip_special: bool
    stops: StopMatcher | None
    parser: parsers.Parser | None
    min_tokens: int
    stop_ids: frozenset[int]
    tokens: int = 0
    reasoning_tokens: int = 0
    finished: bool = False

    def take(self, record: Tokens, text: str) -> Delta:
        """record's tokens, which read as text, as what the client gets to know."""
        delta = Delta(self.index, tokens=record.tokens)
        self.tokens += len(record.tokens)
        if record.logprobs is not None:
            delta.logprobs = [self.entry(t, p) for t, p in zip(record.tokens, record.logprobs, strict=True)]
        if record.reason is not None:
            self._finish(delta, record)
        if self.stops is not None and self.tokens > self.min_tokens:
            text, matched = self.stops.feed(text)
            if matched is not None:
                delta.finish, delta.stop = "stop", matched
            elif delta.finish:
                text += self.stops.flush()
        self._parse(delta, text)
        self.finished = delta.finish is not None
        return delta

    def _finish(self, delta: Delta, record: Tokens) -> None:
        delta.finish = record.reason
        last = record.tokens[-1] if record.tokens else None
        if record.reason == "stop" and last in self.stop_ids:
            delta.stop = last

    def _parse(self, delta: Delta, text: str) -> None:
        if self.parser is None:
            if text:
                delta.events.append(Text(text))
            return
        delta.events = self.parser.feed(text) if text else []
        if delta.finish:
            delta.events += self.parser.finish()
        if delta.events and isinstance(delta.events[0], Reasoning):
            self.reasoning_tokens += len(delta.tokens)

    def entry(self, token: int, logprob: float | None) -> TokenLogprob:
        piece = self.detokenizer.piece(token)
        # A positive value is the engine's placeholder for "not known" (contract 3.6).
        known = logprob is not None and logprob <= 0
        return TokenLogprob(piece.decode("utf-8", "replace"), piece, logprob if known else None)


class Stream(Protocol):
    """What an endpoint needs of a running generation, be it one or several."""

    @property
    def usage(self) -> Usage: ...

    def __aiter__(self) -> AsyncIterator[list[Delta]]: ...

    async def __anext__(self) -> list[Delta]: ...

    async def aclose(self) -> None: ...


class Generation:
    """One accepted request. Iterate for what is new; close it in any case, read to the end or not."""

    def __init__(self, engine: Engine, reply: Reply, choices: list[Choice], timeout_s: float) -> None:
        self.prompt_tokens = reply.prompt_tokens
        self._engine = engine
        self._reply = reply
        self._choices = choices
        self._deadline: asyncio.TimerHandle | None = None
        if timeout_s:
            self._deadline = asyncio.get_running_loop().call_later(timeout_s, self._expire, timeout_s)

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
        )

    def __aiter__(self) -> Generation:
        return self

    async def __anext__(self) -> list[Delta]:
        records = self._reply.poll()
        if records is None:
            records = await self._reply.next()
        if not records:
            raise StopAsyncIteration
        deltas = []
        for record in records:
            choice = self._choices[record.index]
            text = await self._text(choice, record)
            delta = choice.take(record, text)
            if choice.finished and record.reason is None:
                self._reply.cancel(choice.index)  # a stop string, which the engine does not know of
            deltas.append(delta)
        return deltas

    async def _text(self, choice: Choice, record: Tokens) -> str:
        if choice.window is None:
            text = choice.detokenizer.feed(record.tokens)
            return text + choice.detokenizer.flush() if record.reason else text
        return await choice.window.feed(record.tokens, bool(record.reason), choice.skip_special, self._engine.decode)

    def _expire(self, timeout_s: float) -> None:
        self._reply.abort(RequestTimeout(f"the request took longer than this server's limit of {timeout_s:g} s"))

    async def aclose(self) -> None:
        """Cancel in the engine whatever has not finished; idempotent."""
        if self._deadline is not None:
            self._deadline.cancel()
        self._reply.close()


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
