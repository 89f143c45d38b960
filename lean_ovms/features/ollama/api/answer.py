"""Ollama's objects of an answer: parts of a message or text, and a last one with counts and durations.

https://docs.ollama.com/api/chat. A stream has one object per line. A unary response is one object with the whole text
and the members of the last object.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, timezone
from typing import Any

import orjson

from ....api.fields import parsed_object
from ....errors import RequestError
from ....models.generation import Call, CompletedChoice, Generation, WrappedStream
from ....types import (
    ByteStream,
    Delta,
    Event,
    Json,
    Reasoning,
    Response,
    Text,
    TokenLogprob,
    ToolCallDelta,
    ToolCallStart,
    Usage,
)
from ....types.push import Sink
from ....util.chunked_json import serialized
from ...chat.logprobs import logprob_entry
from ..errors import ollama_error
from .request import OllamaRequest

NDJSON = "application/x-ndjson"
NS = 1_000_000_000


def line(value: Json) -> bytes:
    """Returns an object as a line of a stream."""
    return orjson.dumps(value) + b"\n"


def ndjson(body: ByteStream, headers: list[tuple[str, str]] | None = None) -> Response:
    """Returns a response that streams objects as lines."""
    return Response(200, [("Content-Type", NDJSON), ("Cache-Control", "no-cache"), *(headers or [])], body)


def timestamp(seconds: float | None = None) -> str:
    """Returns a Unix time in the form that Ollama's clients parse; None means now."""
    when = datetime.now(timezone.utc) if seconds is None else datetime.fromtimestamp(seconds, timezone.utc)
    return when.isoformat().replace("+00:00", "Z")


def nanoseconds(seconds: float) -> int:
    """Returns a duration in nanoseconds, at least 1, since clients divide by it."""
    return max(1, int(seconds * NS))


def envelope(name: str, *, chat: bool, text: str = "", **more: Any) -> Json:
    """Returns an object of a streamed answer, without the members that only the last object has.

    Args:
        name: The name of the model.
        chat: Whether the text is in a `message`; if not, it is in `response`.
        text: The text.
        **more: Further members of the message, or of the object if it has none.
    """
    content: Json = {"message": {"role": "assistant", "content": text, **more}} if chat else {"response": text, **more}
    return {"model": name, "created_at": timestamp(), **content, "done": False}


class Answer:
    """Makes the objects of one generation."""

    def __init__(self, request: OllamaRequest, generation: Generation, began: float, loaded_s: float) -> None:
        """Begins an answer.

        Args:
            request: The request.
            generation: The generation.
            began: The time.monotonic() at which the request was read.
            loaded_s: The seconds that it waited for its model to be loaded.
        """
        self.request = request
        self._generation = generation
        self._began = began
        self._loaded_s = loaded_s

    def part(
        self, text: str, thinking: str = "", calls: Iterable[Json] = (), logprobs: Sequence[TokenLogprob] = ()
    ) -> Json:
        """Returns an object with a part of the answer.

        Args:
            text: The new text.
            thinking: The new text of the reasoning.
            calls: The new tool calls in Ollama's form.
            logprobs: The log probabilities of the new tokens.
        """
        more = {"thinking": thinking} if thinking else {}
        name, chat = self.request.values["model"], self.request.chat
        found = envelope(name, chat=chat, text=text, **more, **_listed("tool_calls", calls))
        return found | _listed("logprobs", (logprob_entry(token, by_id=False) for token in logprobs))

    def end(self, finish: str, tokens: Sequence[int]) -> Json:
        """Returns the members that only the last object has, with the finish reason and the generated token ids."""
        usage, times = self._generation.usage, self._generation.timings
        total_s, eval_s = time.monotonic() - self._began, times.predicted_ms / 1000
        prompt_s = times.prompt_ms / 1000 or total_s - self._loaded_s - eval_s  # if the engine does not measure it
        found: Json = {
            "done": True,
            "done_reason": finish,
            "total_duration": nanoseconds(total_s),
            "load_duration": nanoseconds(self._loaded_s),
            "prompt_eval_count": usage.prompt_tokens,
            "prompt_eval_duration": nanoseconds(prompt_s),
            "eval_count": usage.completion_tokens,
            "eval_duration": nanoseconds(eval_s),
        }
        return found | ({"context": [*self._generation.prompt_ids, *tokens]} if self.request.with_context else {})

    def whole(self, choice: CompletedChoice) -> Json:
        """Returns the object of a unary response."""
        calls, rest = split_calls(choice.calls)
        found = self.part(choice.text + rest, choice.reasoning, calls)
        if choice.logprobs:
            found["logprobs"] = serialized(logprob_entry(token, by_id=False) for token in choice.logprobs)
        return found | self.end(choice.finish, choice.tokens)


def split_calls(calls: Iterable[Call], first: int = 0) -> tuple[list[Json], str]:
    """Returns the calls in Ollama's form, and as text those with arguments that were cut off.

    `first` calls of the answer came before these. A call has its index both inside and next to its function, where
    Ollama has none, since LiteLLM reads it there, and would otherwise merge all calls of a stream.
    """
    found, rest = list[Json](), ""
    for call in calls:
        arguments = parsed_object(call.arguments) if call.arguments else None  # without arguments they are "{}"
        if arguments is not None:
            index = first + len(found)
            function = {"index": index, "name": call.name, "arguments": arguments}
            found.append({"id": call.id, "index": index, "function": function})
        else:
            rest += f'{{"name": {orjson.dumps(call.name).decode()}, "arguments": {call.arguments}'
    return found, rest


def _listed(name: str, values: Iterable[Json]) -> Json:
    found = list(values)
    return {name: found} if found else {}


class WithoutBlanks(WrappedStream):
    """A stream of deltas without the blanks between reasoning and the text after it, which Ollama leaves out."""

    def __init__(self, generation: Generation) -> None:
        super().__init__(generation)
        self._after_reasoning = False

    async def push_to(self, sink: Sink[list[Delta]]) -> None:
        def push(deltas: list[Delta]) -> None:
            for delta in deltas:
                delta.events = list(filter(None, map(self._event, delta.events)))
            sink.push(deltas)

        await self._stream.push_to(Sink(push, sink.paused))

    def _event(self, event: Event) -> Event | None:
        if isinstance(event, Text):
            text = event.text.lstrip() if self._after_reasoning else event.text
            self._after_reasoning = self._after_reasoning and not text
            return Text(text) if text else None
        self._after_reasoning = isinstance(event, Reasoning) or self._after_reasoning
        return event


class OllamaRenderer:
    """Renders deltas as lines (sse.Renderer). A call is one object, sent when its arguments are complete."""

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self._logprobs: list[TokenLogprob] = []
        self._tokens: list[int] = []
        self._call: tuple[ToolCallStart, list[str]] | None = None
        self._calls = 0
        self._finish = "stop"

    def deltas(self, deltas: list[Delta]) -> bytes:
        return b"".join([line(one) for delta in deltas for one in self._delta(delta)])

    def _delta(self, delta: Delta) -> Iterator[Json]:
        if self._answer.request.with_context:
            self._tokens += delta.tokens
        if self._answer.request.values["logprobs"]:
            self._logprobs += delta.logprobs
        for event in delta.events:
            yield from self._event(event)
        if delta.finish:
            self._finish = delta.finish
            yield from self._complete()
        if self._logprobs:
            yield self._part("")

    def _event(self, event: Event) -> Iterator[Json]:
        if isinstance(event, ToolCallDelta):
            if self._call is not None:
                self._call[1].append(event.text)
            return
        yield from self._complete()
        if isinstance(event, ToolCallStart):
            self._call = (event, [])
        elif isinstance(event, Reasoning):
            if event.text:
                yield self._part("", event.text)
        else:
            yield self._part(event.text)

    def _complete(self) -> Iterator[Json]:
        """Yields the call that has ended, if there is one."""
        if self._call is None:
            return
        start, pieces = self._call
        self._call = None
        calls, rest = split_calls([Call(start.id, start.name, "".join(pieces))], self._calls)
        self._calls += len(calls)
        yield self._part(rest, calls=calls)

    def _part(self, text: str, thinking: str = "", calls: Iterable[Json] = ()) -> Json:
        logprobs, self._logprobs = self._logprobs, []
        return self._answer.part(text, thinking, calls, logprobs)

    def end(self, usage: Usage) -> bytes:
        return line(self._answer.part("") | self._answer.end(self._finish, self._tokens))

    def failed(self, error: RequestError) -> bytes:
        return line(dict(ollama_error(error)))
