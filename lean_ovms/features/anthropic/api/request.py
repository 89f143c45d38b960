"""The body of POST …/messages as the request that every generating endpoint starts."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from ....api.fields import Values
from ....api.generation.request import BodyReader, GenerationBody
from ....api.generation.tools import read_offer
from ....api.response import warning_headers
from ....api.services import Services
from ....errors import BadRequest, RequestError
from ....types import ChatPrompt, Json
from .. import fields
from .conversation import is_prefill, to_messages
from .tools import read_choice, read_tools

REQUIRED = ("max_tokens", "messages")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class MessageRequest:
    """A messages request."""

    values: Values
    """The values of its fields."""
    generation: GenerationBody
    """What is generated."""
    prompt: ChatPrompt
    """The conversation."""
    headers: list[tuple[str, str]]
    """The Warning headers."""

    async def run(self, work: Callable[[ChatPrompt], Awaitable[T]]) -> T:
        """Returns what work makes of the prompt.

        Raises RequestError with a field of this API: places in the messages of chat are not those of the client.
        """
        try:
            return await work(self.prompt)
        except RequestError as error:
            if error.param and error.param.startswith("messages["):
                error.param = "messages"
            raise


def parse_count(body: Json, services: Services) -> MessageRequest:
    """Returns a request that is counted: without max_tokens. Raises RequestError."""
    return parse_message({**body, "stream": False}, services, required=("messages",))


def parse_message(body: Json, services: Services, required: Sequence[str] = REQUIRED) -> MessageRequest:
    """Returns a request for a message. Raises RequestError."""
    for name in required:
        if body.get(name) is None:
            raise BadRequest(f"{name}: Field required", param=name)
    reader = BodyReader(fields.ALL_FIELDS, body, services)
    values = reader.values
    reader.check_max_tokens("max_tokens")
    tools, (choice, parallel) = read_tools(values["tools"]), read_choice(values["tool_choice"])
    messages = to_messages(values["system"], values["messages"])
    renamed = {
        "stop": values["stop_sequences"],
        "include_stop_str_in_output": False,
        "output_config.format": (values["output_config"] or {}).get("format") or values["output_format"],
    }
    if (budget := (values["thinking"] or {}).get("budget_tokens")) is not None:
        renamed[fields.BUDGET] = budget
    offer = read_offer(tools, choice, parallel)
    generation = reader.generation(renamed, offer=offer)
    prefill = is_prefill(messages)
    prompt = ChatPrompt(
        messages=messages,
        tools=offer.tools,
        template_kwargs=fields.template_variables(values),
        add_generation_prompt=not prefill,
        continue_final_message=prefill,
    )
    headers = generation.headers + warning_headers(fields.warnings(values))
    return MessageRequest(values, generation, prompt, headers)
