"""POST …/chat/completions: OpenAI's chat API with OVMS's and vLLM's parameters.

https://platform.openai.com/docs/api-reference/chat, contract sections 2.4, 2.6, 4.3, 5.1. What is not supported is
accepted with a Warning header: generation/unsupported.py.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import orjson

from ...errors import RequestError
from ...models.collect import CompletedChoice, collect
from ...models.generation import Generation
from ...models.text_model import TextModel
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
from ..app import INLINE_BYTES, App
from ..fields import Field, FieldSet
from ..generation import alternatives
from ..generation.common_fields import (
    ADD_GENERATION_PROMPT,
    ANSWERING,
    CHAT_TEMPLATE,
    CONTINUE_FINAL_MESSAGE,
    DOCUMENTS,
    LOGPROBS,
    MESSAGES,
    PROMPT_LOGPROBS,
    TEMPLATE_KWARGS,
    TOOLS,
    TOP_LOGPROBS,
    token_limit,
)
from ..generation.messages import chat_prompt, map_developer_role, read_messages
from ..generation.request import GenerationRequest, RequestSchema, parse
from ..generation.sampling import SAMPLING, Limits, check_max_tokens
from ..generation.structured_output import RESPONSE_FORMAT, STRUCTURED
from ..response import json, logprob_entry, prompt_logprobs, warning_headers
from ..router import RouteDoc, for_each_prefix
from .chunks import ChoiceState, ChunkOptions, Chunks, Envelope

FIELDS = (
    replace(MESSAGES, required=True),
    *TOOLS,
    RESPONSE_FORMAT,
    token_limit("max_completion_tokens", "same as max_tokens, and wins over it"),
    LOGPROBS,
    TOP_LOGPROBS,
    PROMPT_LOGPROBS,
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
ALL_FIELDS = FieldSet((*ANSWERING, *FIELDS, *STRUCTURED, *SAMPLING))


@dataclass(slots=True)
class ChatRequest:
    """The body of a chat request. Not changed once it is built."""

    prompt: ChatPrompt
    generation: GenerationRequest
    options: ChunkOptions


async def handle(request: Request, app: App) -> Response:
    chat = await app.parse_body(request, parse_chat)
    want_ids = chat.options.token_ids or chat.generation.values["prompt_logprobs"] is not None
    generation = await chat.generation.start(chat.prompt, echo=want_ids)
    headers = chat.generation.headers + warning_headers(generation.warnings)
    deltas = chat.generation.deltas(generation)
    if chat.generation.stream:
        return sse.response(deltas, ChatRenderer(chat, generation), app.config.sse_ping_s, headers)
    try:
        sampling = chat.generation.sampling
        size = alternatives.response_size(sampling, generation.prompt_tokens, stream=False)
        choices = await collect(deltas, sampling.n)
        work = lambda: json(full(chat, choices, generation), headers)  # noqa: E731
        return await app.offload.run(size, work, inline_below=INLINE_BYTES)
    finally:
        await generation.aclose()


DOC = RouteDoc(
    summary="The next message of a conversation", body=ALL_FIELDS, answer="ChatCompletion", chunks="ChatCompletionChunk"
)
ROUTES = for_each_prefix("POST", "/chat/completions", handle, doc=DOC)
FOR_MODEL = TextModel


def parse_chat(body: Json, app: App) -> ChatRequest:
    """Raises RequestError."""
    generation = parse(body, SCHEMA, app)
    values = generation.values
    prompt = chat_prompt(values, generation.tools, add_special_tokens=values["add_special_tokens"])
    return ChatRequest(prompt, generation, ChunkOptions.of(values, generation.stream_options))


def _prefer_max_completion_tokens(values: Json, model: TextModel) -> None:
    if (given := values["max_completion_tokens"]) is not None:
        check_max_tokens("max_completion_tokens", given, Limits.of(model.config))
        values["max_tokens"] = given


def _check_messages(values: Json, model: TextModel) -> None:
    values["messages"] = map_developer_role(read_messages(values["messages"]), model)


SCHEMA = RequestSchema(
    fields=ALL_FIELDS,
    before_tools=_prefer_max_completion_tokens,
    after_tools=_check_messages,
    max_tokens="max_completion_tokens",
)


def full(chat: ChatRequest, answers: list[CompletedChoice], generation: Generation) -> Json:
    """The chat.completion object (contract section 5.1)."""
    envelope = Envelope(
        id=chat.options.response_id("chatcmpl"), model=chat.generation.model.name, object="chat.completion"
    )
    choices = [_choice(chat, index, answer) for index, answer in enumerate(answers)]
    body = envelope.full(choices, generation.usage, generation.timings if chat.options.timings else None)
    if chat.options.token_ids:
        body["prompt_token_ids"] = generation.prompt_ids
    if (most := chat.generation.values["prompt_logprobs"]) is not None:
        body["prompt_logprobs"] = prompt_logprobs(generation.prompt_entries(), most)
    return body


def _choice(chat: ChatRequest, index: int, answer: CompletedChoice) -> Json:
    message: Json = {"content": answer.text, "role": chat.generation.model.config.response_role}
    if answer.reasoning and chat.options.reasoning:
        message["reasoning_content"] = message["reasoning"] = answer.reasoning
    message["tool_calls"] = [
        {"id": c.id, "type": "function", "function": {"name": c.name, "arguments": c.arguments}} for c in answer.calls
    ]
    choice: Json = {
        "finish_reason": _finish(answer.finish, bool(answer.calls)),
        "index": index,
        "logprobs": _logprobs(answer.logprobs, chat.options) if chat.generation.sampling.logprobs else None,
        "message": message,
    }
    if answer.stop is not None:
        choice["stop_reason"] = answer.stop
    if chat.options.token_ids:
        choice["token_ids"] = answer.tokens
    return choice


def _finish(reason: str, called: bool) -> str:
    return "tool_calls" if called and reason == "stop" else reason


def _logprobs(tokens: list[TokenLogprob], options: ChunkOptions) -> Json:
    return {"content": [logprob_entry(token, by_id=options.named_by_id) for token in tokens]}


class ChatRenderer:
    """Deltas to chat.completion.chunk events (contract section 4.3)."""

    def __init__(self, chat: ChatRequest, generation: Generation) -> None:
        response_id = chat.options.response_id("chatcmpl")
        envelope = Envelope(id=response_id, model=chat.generation.model.name, object="chat.completion.chunk")
        self._chunks = Chunks(envelope, generation, chat.options)
        self._choices = [ChoiceState() for _ in range(chat.generation.sampling.n)]
        self._logprobs = chat.generation.sampling.logprobs
        self._options = chat.options
        # Of the first chunk of a choice, and as in llama.cpp of those with the progress of the prompt.
        role = chat.generation.model.config.response_role
        self._opening = b'"delta":{"role":' + orjson.dumps(role) + b',"content":null}'

    def deltas(self, deltas: list[Delta]) -> bytes:
        return b"".join([self._delta(delta, self._choices[delta.index]) for delta in deltas])

    def _delta(self, delta: Delta, state: ChoiceState) -> bytes:
        events = delta.events
        if state.text is not None and delta.finish is None and len(events) == 1 and type(events[0]) is Text:
            before, after = state.text  # nearly every chunk
            return before + orjson.dumps(events[0].text) + after
        out = b""
        if delta.progress is not None:
            state.started = True
            return self._chunks.progress(delta.index, self._opening, delta.progress)
        if not state.started:
            state.started = True
            out = self._chunks.chunk(delta.index, self._opening, state)
            if not self._logprobs:
                state.text = self._chunks.around(delta.index, b'"delta":{"content":', b"}")
        state.add(delta)
        for event in delta.events:
            if not self._options.reasoning and isinstance(event, Reasoning):
                continue
            out += self._chunk(delta.index, b'"delta":' + self.delta_json(event, state), state)
        if delta.finish:
            out += self._chunk(delta.index, b'"delta":{}', state, _finish(delta.finish, state.has_calls))
        return out

    def _chunk(self, index: int, content: bytes, state: ChoiceState, finish: str = "") -> bytes:
        logprobs = b"null"
        if self._logprobs and state.logprobs:
            logprobs = orjson.dumps(_logprobs(state.logprobs, self._options))
            state.logprobs = []
        return self._chunks.chunk(index, content, state, logprobs, finish)

    @staticmethod
    def delta_json(event: Event, state: ChoiceState) -> bytes:
        """The `delta` object of one event. Reasoning has OVMS's name and vLLM's."""
        if isinstance(event, Text):
            return b'{"content":' + orjson.dumps(event.text) + b"}"
        if isinstance(event, Reasoning):
            text = orjson.dumps(event.text)
            return b'{"reasoning_content":' + text + b',"reasoning":' + text + b"}"
        state.has_calls = True
        return orjson.dumps({"tool_calls": [_call_delta(event)]})

    def end(self, usage: Usage) -> bytes:
        return self._chunks.end(usage)

    def failed(self, error: RequestError) -> bytes:
        return self._chunks.failed(error)


def _call_delta(event: ToolCallStart | ToolCallDelta) -> Json:
    if isinstance(event, ToolCallStart):
        function = {"name": event.name, "arguments": ""}
        return {"id": event.id, "type": "function", "index": event.index, "function": function}
    return {"index": event.index, "function": {"arguments": event.text}}
