"""POST …/chat/completions: OpenAI's chat API with OVMS's and vLLM's parameters.

https://platform.openai.com/docs/api-reference/chat, contract sections 2.4, 2.6, 4.3, 5.1. Not supported: top_logprobs
beyond the chosen token (the engine does not tell), logit_bias; both are accepted with a Warning header.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import orjson

from ...errors import BadRequest, RequestError
from ...generation import Answer, Generation, fold
from ...model import Model
from ...shapes import (
    CallArgs,
    CallStart,
    ChatPrompt,
    Delta,
    Event,
    Json,
    Output,
    Reasoning,
    Request,
    Response,
    Sampling,
    Text,
    TokenLogprob,
    Usage,
)
from .. import sse
from ..answers import STREAM, json, model_name, new_id, notices, stream_options, warnings
from ..app import App
from ..chunks import ChunkOptions, Chunks, Envelope, Pending
from ..fields import UINT32_MAX, Row, json_body, read
from ..first_call import FirstCall
from ..formats import RESPONSE_FORMAT, STRUCTURED, ToolRule, read_guide, with_tools
from ..messages import read_messages, read_tools
from ..routes import under_bases
from ..sampling import SAMPLING, Defaults, Limits, build_output, build_sampling

FIELDS = (
    Row(name="messages", kind="any", help="the conversation: role, content, tool_calls, tool_call_id, name"),
    Row(name="tools", kind="any", help="functions that the model may call"),
    Row(name="tool_choice", kind="any", help="none, auto, required, one function, or allowed_tools"),
    Row(name="parallel_tool_calls", kind="bool", help="false: the answer has one call at most"),
    RESPONSE_FORMAT,
    Row(
        name="max_completion_tokens",
        kind="uint",
        high=UINT32_MAX,
        help="same as max_tokens, and wins over it",
        outside=f"max_completion_tokens value can't be greater than {UINT32_MAX}",
    ),
    Row(name="logprobs", kind="bool", help="log probability of each chosen token"),
    Row(name="top_logprobs", kind="uint", high=20, help="accepted; only the chosen token is known"),
    Row(
        name="chat_template_kwargs",
        kind="object",
        help="variables for the chat template, such as enable_thinking",
        wrong="chat_template_kwargs must be an object",
    ),
    Row(name="reasoning_effort", kind="string", help="given to the chat template"),
    Row(name="add_generation_prompt", kind="bool", help="end the prompt with the assistant's turn (default true)"),
    Row(name="continue_final_message", kind="bool", help="go on inside the last message"),
    Row(name="add_special_tokens", kind="bool", help="let the tokenizer add BOS as well (default false)"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """A chat request, read. one_call: it ends before a second tool call."""

    model: Model
    prompt: ChatPrompt
    sampling: Sampling
    output: Output
    one_call: bool
    stream: bool
    options: ChunkOptions
    truncate: int | None
    headers: list[tuple[str, str]]


async def handle(request: Request, app: App) -> Response:
    ask = read_ask(json_body(request), app)
    generation = await ask.model.start(
        ask.prompt, ask.sampling, ask.output, truncate=ask.truncate, echo=ask.options.token_ids
    )
    headers = ask.headers + notices(generation.notices)
    source = FirstCall(generation, ask.sampling.n) if ask.one_call else generation
    if ask.stream:
        return sse.response(source, Stream(ask, generation), app.config.sse_ping_s, headers)
    try:
        return json(full(ask, await fold(source, ask.sampling.n), generation), headers)
    finally:
        await generation.aclose()


ROUTES = under_bases("POST", "/chat/completions", handle)


def read_ask(body: Json, app: App) -> Ask:
    """Body to Ask. Raises RequestError."""
    values = read((*STREAM, *FIELDS, *STRUCTURED, *SAMPLING), body)
    model = app.model(model_name(values))
    usage, continuous = stream_options(values)
    limits = Limits(max_tokens=app.config.max_tokens_limit, sequences=app.config.best_of_limit)
    defaults = Defaults(model.directory.generation_config)
    _apply_max_completion_tokens(values, limits)
    tools, choice = read_tools(values["tools"], values["tool_choice"])
    prompt = _prompt(values, tools)
    sampling = build_sampling(values, defaults, limits, logprobs=bool(values["logprobs"]))
    if sampling.max_tokens == 0:
        raise BadRequest("max_tokens value should be greater than 0", param="max_tokens")
    output = build_output(values, defaults, stream=bool(values["stream"]), parse=True, tools=prompt.tools)
    guide, dropped = read_guide(values, app.config)
    rule = ToolRule.read(tools, choice, values["parallel_tool_calls"])
    top = ["top_logprobs holds no alternatives"] if values["top_logprobs"] else []
    return Ask(
        model=model,
        prompt=prompt,
        sampling=sampling,
        output=replace(output, guide=with_tools(guide, rule, app.config, sampling)),
        one_call=rule.offered and not rule.parallel,
        stream=bool(values["stream"]),
        options=ChunkOptions(usage=usage, continuous=continuous, token_ids=bool(values["return_token_ids"])),
        truncate=values["truncate_prompt_tokens"],
        headers=warnings(body, top + dropped),
    )


def _apply_max_completion_tokens(values: Json, limits: Limits) -> None:
    asked = values["max_completion_tokens"]
    if asked is None:
        return
    if limits.max_tokens and asked > limits.max_tokens:
        raise BadRequest(
            f"max_completion_tokens exceeds limit of this server: {limits.max_tokens}", param="max_completion_tokens"
        )
    values["max_tokens"] = asked


def _prompt(values: Json, tools: list[Json]) -> ChatPrompt:
    messages = read_messages(values["messages"])
    kwargs = dict(values["chat_template_kwargs"] or {})
    add = kwargs.pop("add_generation_prompt", values["add_generation_prompt"])
    if add is not None and not isinstance(add, bool):
        raise BadRequest("add_generation_prompt accepts values true or false", param="chat_template_kwargs")
    if values["reasoning_effort"] is not None:
        kwargs.setdefault("reasoning_effort", values["reasoning_effort"])
    carry_on = bool(values["continue_final_message"])
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
        add_special_tokens=bool(values["add_special_tokens"]),
    )


def full(ask: Ask, answers: list[Answer], generation: Generation) -> Json:
    """The chat.completion object (contract section 5.1)."""
    envelope = Envelope(id=new_id("chatcmpl"), model=ask.model.name, object="chat.completion")
    choices = [_choice(ask, index, answer) for index, answer in enumerate(answers)]
    body = envelope.full(choices, generation.usage)
    if ask.options.token_ids:
        body["prompt_token_ids"] = generation.prompt_ids
    return body


def _choice(ask: Ask, index: int, answer: Answer) -> Json:
    message: Json = {"content": answer.text, "role": "assistant"}
    if answer.reasoning:
        message["reasoning_content"] = answer.reasoning
    message["tool_calls"] = [
        {"id": c.id, "type": "function", "function": {"name": c.name, "arguments": c.arguments}} for c in answer.calls
    ]
    choice: Json = {
        "finish_reason": _finish(answer.finish, bool(answer.calls)),
        "index": index,
        "logprobs": _logprobs(answer.logprobs) if ask.sampling.logprobs else None,
        "message": message,
    }
    if answer.stop is not None:
        choice["stop_reason"] = answer.stop
    if ask.options.token_ids:
        choice["token_ids"] = answer.tokens
    return choice


def _finish(reason: str, called: bool) -> str:
    return "tool_calls" if called and reason == "stop" else reason


def _logprobs(tokens: list[TokenLogprob]) -> Json:
    return {
        "content": [
            {"token": t.token, "logprob": t.logprob, "bytes": list(t.bytes), "top_logprobs": []} for t in tokens
        ]
    }


class Stream:
    """Deltas to chat.completion.chunk events (contract section 4.3)."""

    def __init__(self, ask: Ask, generation: Generation) -> None:
        envelope = Envelope(id=new_id("chatcmpl"), model=ask.model.name, object="chat.completion.chunk")
        self._chunks = Chunks(envelope, generation, ask.options)
        self._choices = [Pending() for _ in range(ask.sampling.n)]
        self._logprobs = ask.sampling.logprobs

    def deltas(self, deltas: list[Delta]) -> bytes:
        return b"".join([self._delta(delta, self._choices[delta.index]) for delta in deltas])

    def _delta(self, delta: Delta, pending: Pending) -> bytes:
        out = b""
        if not pending.begun:
            pending.begun = True
            out = self._chunks.chunk(delta.index, b'"delta":{"role":"assistant","content":null}', pending)
        pending.take(delta)
        for said in delta.events:
            out += self._chunk(delta.index, b'"delta":' + self.said(said, pending), pending)
        if delta.finish:
            out += self._chunk(delta.index, b'"delta":{}', pending, _finish(delta.finish, pending.called))
        return out

    def _chunk(self, index: int, content: bytes, pending: Pending, finish: str = "") -> bytes:
        logprobs = b"null"
        if self._logprobs and pending.logprobs:
            logprobs = orjson.dumps(_logprobs(pending.logprobs))
            pending.logprobs = []
        return self._chunks.chunk(index, content, pending, logprobs, finish)

    @staticmethod
    def said(said: Event, pending: Pending) -> bytes:
        """One event as the JSON of a delta."""
        if isinstance(said, Text):
            return b'{"content":%b}' % orjson.dumps(said.text)
        if isinstance(said, Reasoning):
            return b'{"reasoning_content":%b}' % orjson.dumps(said.text)
        pending.called = True
        return orjson.dumps({"tool_calls": [_call_delta(said)]})

    def end(self, usage: Usage) -> bytes:
        return self._chunks.end(usage)

    def failed(self, error: RequestError) -> bytes:
        return self._chunks.failed(error)


def _call_delta(said: CallStart | CallArgs) -> Json:
    if isinstance(said, CallStart):
        function = {"name": said.name, "arguments": ""}
        return {"id": said.id, "type": "function", "index": said.index, "function": function}
    return {"index": said.index, "function": {"arguments": said.text}}
