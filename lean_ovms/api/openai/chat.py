"""POST …/chat/completions: OpenAI's chat API with OVMS's and vLLM's parameters.

https://platform.openai.com/docs/api-reference/chat, contract sections 2.4, 2.6, 4.3, 5.1. Not supported: top_logprobs
beyond the chosen token (the engine does not tell), which is accepted with a Warning header, as is what unsupported.py
lists.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import orjson

from ...errors import BadRequest, RequestError
from ...models.collect import CompletedChoice, collect
from ...models.generation import Generation
from ...types import (
    ChatPrompt,
    Delta,
    Event,
    Json,
    Reasoning,
    Request,
    Response,
    Text,
    TokenLogprob,
    ToolCallDelta,
    ToolCallStart,
    Usage,
)
from .. import sse
from ..app import App
from ..fields import Field, FieldSet
from ..generation.common_fields import (
    ADD_GENERATION_PROMPT,
    ANSWERING,
    CHAT_TEMPLATE,
    CONTINUE_FINAL_MESSAGE,
    DOCUMENTS,
    LOGPROBS,
    MESSAGES,
    TEMPLATE_KWARGS,
    TOOLS,
    TOP_LOGPROBS,
    template_kwargs,
    token_limit,
)
from ..generation.messages import map_developer_role, read_messages
from ..generation.request import GenerationRequest, RequestParser
from ..generation.sampling import SAMPLING
from ..generation.structured_output import RESPONSE_FORMAT, STRUCTURED
from ..response import json, notices
from ..router import RouteDoc, for_each_prefix
from .chunks import ChunkOptions, Chunks, Envelope, Pending

FIELDS = (
    replace(MESSAGES, required=True),
    *TOOLS,
    RESPONSE_FORMAT,
    token_limit("max_completion_tokens", "same as max_tokens, and wins over it"),
    LOGPROBS,
    TOP_LOGPROBS,
    TEMPLATE_KWARGS,
    Field(
        name="reasoning_effort",
        kind="string",
        help="enable_thinking (none: off) and reasoning_effort for the chat template",
    ),
    Field(name="verbosity", kind="string", help="given to the chat template"),
    ADD_GENERATION_PROMPT,
    CONTINUE_FINAL_MESSAGE,
    DOCUMENTS,
    CHAT_TEMPLATE,
    Field(name="include_reasoning", kind="bool", help="false: what the model thinks is left out", default=True),
    Field(name="add_special_tokens", kind="bool", help="let the tokenizer add BOS as well", default=False),
)
ROWS = FieldSet((*ANSWERING, *FIELDS, *STRUCTURED, *SAMPLING))


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """A chat request, read."""

    prompt: ChatPrompt
    order: GenerationRequest
    options: ChunkOptions


async def handle(request: Request, app: App) -> Response:
    ask = await app.parse_body(request, read_ask)
    order = ask.order
    generation = await order.start(ask.prompt, echo=ask.options.token_ids)
    headers = order.headers + notices(generation.notices)
    source = order.source(generation)
    if order.stream:
        return sse.response(source, ChatRenderer(ask, generation), app.config.sse_ping_s, headers)
    try:
        return json(full(ask, await collect(source, order.sampling.n), generation), headers)
    finally:
        await generation.aclose()


ABOUT = RouteDoc(
    summary="The next message of a conversation", body=ROWS, answer="ChatCompletion", chunks="ChatCompletionChunk"
)
ROUTES = for_each_prefix("POST", "/chat/completions", handle, about=ABOUT)


def read_ask(body: Json, app: App) -> ChatRequest:
    """Body to Ask. Raises RequestError."""
    reading = RequestParser(ROWS, body, app)
    values = reading.values
    options = ChunkOptions.read(values)
    if (most := reading.limited("max_completion_tokens")) is not None:
        values["max_tokens"] = most
    offer = reading.offer(values["tools"])
    prompt = _prompt(reading, offer.tools)
    sampling = reading.sampling(logprobs=values["logprobs"])
    if sampling.max_tokens == 0:
        raise BadRequest(
            "max_tokens value should be greater than 0", param="max_tokens" if most is None else "max_completion_tokens"
        )
    return ChatRequest(prompt, reading.order(sampling, reading.guide(), offer, parse=True), options)


def _prompt(reading: RequestParser, tools: list[Json]) -> ChatPrompt:
    values = reading.values
    messages = map_developer_role(read_messages(values["messages"]), reading.model)
    kwargs = template_kwargs(values)
    add = kwargs.pop("add_generation_prompt", values["add_generation_prompt"])
    if add is not None and not isinstance(add, bool):
        raise BadRequest("add_generation_prompt accepts values true or false", param="chat_template_kwargs")
    carry_on = values["continue_final_message"]
    if carry_on and add:
        raise BadRequest(
            "continue_final_message and add_generation_prompt exclude each other", param="continue_final_message"
        )
    return ChatPrompt(
        messages=messages,
        tools=tools,
        template_kwargs=kwargs,
        add_generation_prompt=not carry_on if add is None else add,
        continue_final_message=carry_on,
        add_special_tokens=values["add_special_tokens"],
    )


def full(ask: ChatRequest, answers: list[CompletedChoice], generation: Generation) -> Json:
    """The chat.completion object (contract section 5.1)."""
    envelope = Envelope(id=ask.options.answer_id("chatcmpl"), model=ask.order.model.name, object="chat.completion")
    choices = [_choice(ask, index, answer) for index, answer in enumerate(answers)]
    body = envelope.full(choices, generation.usage)
    if ask.options.token_ids:
        body["prompt_token_ids"] = generation.prompt_ids
    return body


def _choice(ask: ChatRequest, index: int, answer: CompletedChoice) -> Json:
    message: Json = {"content": answer.text, "role": "assistant"}
    if answer.reasoning and ask.options.reasoning:
        message["reasoning_content"] = answer.reasoning
    message["tool_calls"] = [
        {"id": c.id, "type": "function", "function": {"name": c.name, "arguments": c.arguments}} for c in answer.calls
    ]
    choice: Json = {
        "finish_reason": _finish(answer.finish, bool(answer.calls)),
        "index": index,
        "logprobs": _logprobs(answer.logprobs, ask.options) if ask.order.sampling.logprobs else None,
        "message": message,
    }
    if answer.stop is not None:
        choice["stop_reason"] = answer.stop
    if ask.options.token_ids:
        choice["token_ids"] = answer.tokens
    return choice


def _finish(reason: str, called: bool) -> str:
    return "tool_calls" if called and reason == "stop" else reason


def _logprobs(tokens: list[TokenLogprob], options: ChunkOptions) -> Json:
    name = options.name
    return {
        "content": [
            {"token": name(t), "logprob": t.logprob, "bytes": list(t.bytes), "top_logprobs": []} for t in tokens
        ]
    }


class ChatRenderer:
    """Deltas to chat.completion.chunk events (contract section 4.3)."""

    def __init__(self, ask: ChatRequest, generation: Generation) -> None:
        answer_id = ask.options.answer_id("chatcmpl")
        envelope = Envelope(id=answer_id, model=ask.order.model.name, object="chat.completion.chunk")
        self._chunks = Chunks(envelope, generation, ask.options)
        self._choices = [Pending() for _ in range(ask.order.sampling.n)]
        self._logprobs = ask.order.sampling.logprobs
        self._options = ask.options

    def deltas(self, deltas: list[Delta]) -> bytes:
        return b"".join([self._delta(delta, self._choices[delta.index]) for delta in deltas])

    def _delta(self, delta: Delta, pending: Pending) -> bytes:
        out = b""
        if not pending.begun:
            pending.begun = True
            out = self._chunks.chunk(delta.index, b'"delta":{"role":"assistant","content":null}', pending)
        pending.take(delta)
        for said in delta.events:
            if not self._options.reasoning and isinstance(said, Reasoning):
                continue
            out += self._chunk(delta.index, b'"delta":' + self.said(said, pending), pending)
        if delta.finish:
            out += self._chunk(delta.index, b'"delta":{}', pending, _finish(delta.finish, pending.called))
        return out

    def _chunk(self, index: int, content: bytes, pending: Pending, finish: str = "") -> bytes:
        logprobs = b"null"
        if self._logprobs and pending.logprobs:
            logprobs = orjson.dumps(_logprobs(pending.logprobs, self._options))
            pending.logprobs = []
        return self._chunks.chunk(index, content, pending, logprobs, finish)

    @staticmethod
    def said(said: Event, pending: Pending) -> bytes:
        """One event as the JSON of a delta."""
        if isinstance(said, Text):
            return b'{"content":' + orjson.dumps(said.text) + b"}"
        if isinstance(said, Reasoning):
            return b'{"reasoning_content":' + orjson.dumps(said.text) + b"}"
        pending.called = True
        return orjson.dumps({"tool_calls": [_call_delta(said)]})

    def end(self, usage: Usage) -> bytes:
        return self._chunks.end(usage)

    def failed(self, error: RequestError) -> bytes:
        return self._chunks.failed(error)


def _call_delta(said: ToolCallStart | ToolCallDelta) -> Json:
    if isinstance(said, ToolCallStart):
        function = {"name": said.name, "arguments": ""}
        return {"id": said.id, "type": "function", "index": said.index, "function": function}
    return {"index": said.index, "function": {"arguments": said.text}}
