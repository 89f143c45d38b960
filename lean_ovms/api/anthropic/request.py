"""The body of POST …/messages as the request that every generating endpoint starts."""

from __future__ import annotations

from dataclasses import dataclass

from ...errors import BadRequest, RequestError
from ...models.generation import Generation
from ...models.text_model import TextModel
from ...types import ChatPrompt, Json
from ..generation.messages import map_late_system
from ..generation.request import GenerationRequest, RequestSchema, parse
from ..generation.sampling import Limits, check_max_tokens
from ..response import warning_headers
from ..services import Services
from . import fields
from .conversation import is_prefill, to_messages
from .tools import read_choice, read_tools

REQUIRED = ("max_tokens", "messages")


@dataclass(frozen=True, slots=True)
class MessageRequest:
    """A messages request. stops: its stop sequences. omit_thinking: no reasoning text in the answer.

    timings, timings_per_token: as in chunks.ChunkOptions.
    """

    generation: GenerationRequest
    prompt: ChatPrompt
    headers: list[tuple[str, str]]
    stops: tuple[str, ...]
    omit_thinking: bool
    timings: bool
    timings_per_token: bool

    async def start(self) -> Generation:
        """The running generation. Raises RequestError."""
        try:
            return await self.generation.start(self.prompt)
        except RequestError as error:
            raise _named(error) from None

    async def count(self) -> int:
        """Tokens of the prompt. Raises RequestError."""
        try:
            return await self.generation.count(self.prompt)
        except RequestError as error:
            raise _named(error) from None


def parse_message(body: Json, services: Services) -> MessageRequest:
    """A request for a message. Raises RequestError."""
    for name in REQUIRED:
        if body.get(name) is None:
            raise BadRequest(f"{name}: Field required", param=name)
    return _parse(body, services)


def parse_count(body: Json, services: Services) -> MessageRequest:
    """A request that is counted: without max_tokens. Raises RequestError."""
    if body.get("messages") is None:
        raise BadRequest("messages: Field required", param="messages")
    return _parse({**body, "stream": False}, services)


def _parse(body: Json, services: Services) -> MessageRequest:
    generation = parse(body, SCHEMA, services)
    values = generation.values
    prefill = is_prefill(values["messages"])
    prompt = ChatPrompt(
        messages=values["messages"],
        tools=generation.tools,
        template_kwargs=fields.template_variables(values),
        add_generation_prompt=not prefill,
        continue_final_message=prefill,
    )
    return MessageRequest(
        generation=generation,
        prompt=prompt,
        headers=generation.headers + warning_headers(fields.warnings(values)),
        stops=values["stop_sequences"] or (),
        omit_thinking=fields.omits_thinking(values),
        timings=values["timings"] or values["timings_per_token"],
        timings_per_token=values["timings_per_token"],
    )


def _as_chat(values: Json, model: TextModel) -> None:
    """What has another name or form in chat, under that of chat. Raises BadRequest."""
    values.update(fields.ABSENT)
    check_max_tokens("max_tokens", values["max_tokens"] or 0, Limits.of(model.config))
    values["stop"] = values["stop_sequences"]
    values["tools"] = read_tools(values["tools"])
    values["tool_choice"], values["parallel_tool_calls"] = read_choice(values["tool_choice"])
    values["messages"] = map_late_system(to_messages(values["system"], values["messages"]), model)
    values["output_config.format"] = fields.output_format(values)
    if fields.BUDGET in fields.ALL_FIELDS.places and (budget := fields.thinking_budget(values)) is not None:
        values[fields.BUDGET] = budget


SCHEMA = RequestSchema(fields=fields.ALL_FIELDS, before_tools=_as_chat)


def _named(error: RequestError) -> RequestError:
    """An error with the field of this API as param: places in the messages of chat are not those of the client."""
    if error.param and error.param.startswith("messages["):
        error.param = "messages"
    return error
