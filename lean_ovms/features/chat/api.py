"""POST …/chat/completions: OpenAI's chat API with OVMS's and vLLM's parameters.

https://platform.openai.com/docs/api-reference/chat,
https://github.com/openvinotoolkit/model_server/blob/main/docs/model_server_rest_api_chat.md. Fields that are not
supported are accepted with a Warning header (generation/common_fields.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import orjson

from ...api import sse
from ...api.fields import RouteDoc
from ...api.response import json, warning_headers, written
from ...api.services import Services
from ...models.generation import CompletedChoice, Generation, collect
from ...types import Delta, Event, Json, Reasoning, Request, Response, Text, ToolCallStart, Usage
from ...util import chunked_json
from .chunks import ChoiceState, Chunks
from .logprobs import generated_size, prompt_logprobs, response_size
from .request import ALL_FIELDS, ChatRequest, chat_logprobs, choice, envelope, finish_reason, parse_chat


@RouteDoc("The next message of a conversation", body=ALL_FIELDS, other_clients=True, stream=True)
async def handle(request: Request, services: Services) -> Response:
    chat = await services.parse_body(request, parse_chat)
    want_ids = chat.options.token_ids or chat.generation.logprobs.prompt is not None
    if chat.audio is not None:
        await services.offload.run(0, partial(chat.audio.file, b""))  # raises an error if the format is not available
    generation = await chat.generation.start(chat.prompt, echo=want_ids)
    headers = chat.generation.headers + warning_headers(generation.warnings)
    deltas = chat.deltas(generation)
    if chat.generation.stream:
        return sse.response(deltas, ChatRenderer(chat, generation), services.config.sse_ping_s, headers)
    try:
        sampling = chat.generation.sampling
        size = response_size(sampling, generation.prompt_tokens, stream=False)
        choices = await collect(deltas, sampling.n)
        size += generated_size(sampling, generation.usage.completion_tokens)
        size += sum(len(samples) for choice in choices for samples in choice.audio)
        return await written(services.offload, size, lambda: full(chat, choices, generation), headers)
    finally:
        await generation.aclose()


@RouteDoc("How many tokens the prompt of a chat request would have", body=ALL_FIELDS, other_clients=True)
async def handle_input_tokens(request: Request, services: Services) -> Response:
    """Counts a conversation's tokens without generating, as llama.cpp does. Answers like /responses/input_tokens."""
    chat = await services.parse_body(request, parse_chat)
    tokens = await chat.generation.count(chat.prompt)
    return json({"object": "response.input_tokens", "input_tokens": tokens}, chat.generation.headers)


def full(chat: ChatRequest, answers: list[CompletedChoice], generation: Generation) -> Json:
    """Returns the chat.completion object with all choices."""
    choices = [choice(chat, index, answer) for index, answer in enumerate(answers) if answer.finish]
    body = envelope(chat).full(choices, generation.usage, chat.options.times(generation))
    if chat.options.token_ids:
        body["prompt_token_ids"] = generation.prompt_ids
    if (most := chat.generation.logprobs.prompt) is not None:
        body["prompt_logprobs"] = prompt_logprobs(generation.prompt_entries(), most)
    return body


class ChatRenderer(sse.Renderer[Delta]):
    """Renders deltas as chat.completion.chunk events."""

    def __init__(self, chat: ChatRequest, generation: Generation) -> None:
        self._chunks = Chunks(envelope(chat, "chat.completion.chunk"), generation, chat.options)
        self._choices = [ChoiceState() for _ in range(chat.generation.sampling.n)]
        self._logprobs = chat.generation.sampling.logprobs
        self._options = chat.options
        self._chat = chat
        self._audio = None if chat.audio is None else chat.audio.deltas()
        # The role is in a choice's first chunk and, as in llama.cpp, in chunks with the progress of the prompt.
        role = chat.generation.model.config.response_role
        self._opening = b'"delta":{"role":' + orjson.dumps(role) + b',"content":null}'

    def deltas(self, deltas: list[Delta]) -> bytes:
        return b"".join([self._delta(delta, self._choices[delta.index]) for delta in deltas])

    def _delta(self, delta: Delta, state: ChoiceState) -> bytes:
        events = delta.events
        if state.text is not None and delta.finish is None and len(events) == 1 and type(events[0]) is Text:
            before, after = state.text  # the path of nearly all chunks
            return before + orjson.dumps(events[0].text) + after
        out = b""
        if delta.progress is not None:
            state.started = True
            return self._chunks.progress(delta.index, self._opening, delta.progress)
        if not state.started:
            state.started = True
            out = self._chunks.chunk(delta.index, self._opening, state)
            if not self._logprobs and self._audio is None:
                state.text = self._chunks.around(delta.index, b'"delta":{"content":', b"}")
        state.add(delta)
        state.has_calls = state.has_calls or any(isinstance(event, ToolCallStart) for event in events)
        for content in self._contents(delta):
            out += self._chunk(delta.index, b'"delta":' + content, state)
        if delta.finish:
            called = state.has_calls and not delta.broken_call
            reason = finish_reason(self._chat, delta.finish, called=called)
            out += self._chunk(delta.index, b'"delta":{}', state, reason)
        return out

    def _contents(self, delta: Delta) -> Iterator[bytes]:
        """Yields the JSON of each `delta` object for a delta of the generation."""
        for event in delta.events:
            if isinstance(event, Reasoning) and not self._options.reasoning:
                continue
            if self._audio is not None and isinstance(event, Text):
                yield self._audio.transcript(event.text)
            else:
                yield delta_json(event, functions=self._chat.functions)
        if self._audio is not None:
            yield from self._audio.of(delta)

    def _chunk(self, index: int, content: bytes, state: ChoiceState, finish: str = "") -> bytes:
        logprobs = b"null"
        if self._logprobs and state.logprobs:
            logprobs = chunked_json.dumps(chat_logprobs(state.logprobs, self._options))
            state.logprobs = []
        return self._chunks.chunk(index, content, state, logprobs, finish)

    def end(self, usage: Usage) -> bytes:
        return self._chunks.end(usage)


def delta_json(event: Event, *, functions: bool = False) -> bytes:
    """Returns the `delta` object of one event, in which reasoning has both OVMS's name and vLLM's.

    With `functions`, a call is written in the older form, as function_call.
    """
    if isinstance(event, Text):
        return b'{"content":' + orjson.dumps(event.text) + b"}"
    if isinstance(event, Reasoning):
        text = orjson.dumps(event.text)
        return b'{"reasoning_content":' + text + b',"reasoning":' + text + b"}"
    named: Json = {}
    if isinstance(event, ToolCallStart):
        named, function = {"id": event.id, "type": "function"}, {"name": event.name, "arguments": ""}
    else:
        function = {"arguments": event.text}
    if functions:
        return orjson.dumps({"function_call": function})
    return orjson.dumps({"tool_calls": [{**named, "index": event.index, "function": function}]})
