"""Reads the body of POST …/messages."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from ....api.fields import Values
from ....api.response import warning_headers
from ....api.services import Services
from ....errors import BadRequest
from ....types import ChatPrompt, Json
from ...chat.generation import BodyReader, GenerationBody, read_offer
from ...chat.request import errors_of_input
from .. import fields
from .conversation import is_prefill, to_messages
from .loaded_tools import LoadedTools

REQUIRED = ("max_tokens", "messages")
CHOICES = ("auto", "any", "tool", "none")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class MessageRequest:
    """A parsed request for a message."""

    values: Values
    """The value of every field of the body, by name."""
    generation: GenerationBody
    """The parameters of the generation."""
    prompt: ChatPrompt
    """The conversation, as messages of chat."""
    headers: list[tuple[str, str]]
    """The Warning headers of the response."""

    async def run(self, work: Callable[[ChatPrompt], Awaitable[T]]) -> T:
        """Calls `work` with the prompt, and returns its result.

        In a RequestError, a path in the messages of chat is replaced by "messages", as it is not the client's path.
        """
        with errors_of_input("messages"):
            return await work(self.prompt)


def parse_count(body: Json, services: Services) -> MessageRequest:
    """Reads a body whose tokens are counted, in which max_tokens may be missing. Raises RequestError."""
    return parse_message({**body, "stream": False}, services, required=("messages",))


def parse_message(body: Json, services: Services, required: Sequence[str] = REQUIRED) -> MessageRequest:
    """Reads the body of a request for a message. Raises RequestError."""
    for name in required:
        if body.get(name) is None:
            raise BadRequest(f"{name}: Field required", param=name)
    reader = BodyReader(fields.ALL_FIELDS, body, services)
    values = reader.values
    reader.check_max_tokens("max_tokens")
    tools = LoadedTools(values["tools"], read_tool)
    choice, parallel = read_choice(values["tool_choice"])
    messages, unshown = to_messages(values["system"], tools.load(values["messages"]))
    renamed = {
        "stop": values["stop_sequences"],
        "include_stop_str_in_output": False,
        "output_config.format": (values["output_config"] or {}).get("format") or values["output_format"],
    }
    if (budget := (values["thinking"] or {}).get("budget_tokens")) is not None:
        renamed[fields.BUDGET] = budget
    offer = read_offer(tools.callable(choice) or None, choice, parallel)
    generation = reader.generation(renamed, offer=offer)
    prompt = ChatPrompt(
        messages=messages,
        tools=tools.described(offer.tools),
        template_kwargs=fields.template_variables(values),
        continue_final_message=is_prefill(messages),
    )
    headers = generation.headers + warning_headers(fields.warnings(values) + unshown)
    return MessageRequest(values, generation, prompt, headers)


# --- tools and tool_choice, in the form of chat


def read_tool(tool: Any, param: str) -> Json:
    """Converts a client's tool to a function. Raises BadRequest for a tool that the server would have to run."""
    if not isinstance(tool, dict):
        raise BadRequest(f"{param}: each tool must be an object", param=param)
    kind = tool.get("type") or "custom"
    if kind != "custom":
        raise BadRequest(
            f"{param}.type: {str(kind)[:60]!r} is a tool of Anthropic's servers or models, which is not supported; "
            "use a tool of your own, with name, description and input_schema",
            param=f"{param}.type",
        )
    if not isinstance(tool.get("name"), str) or not tool["name"]:
        raise BadRequest(f"{param}.name: Field required", param=f"{param}.name")
    if not isinstance(tool.get("input_schema"), dict):
        raise BadRequest(f"{param}.input_schema: Field required", param=f"{param}.input_schema")
    described = {"description": tool["description"]} if isinstance(tool.get("description"), str) else {}
    function = {"name": tool["name"], **described, "parameters": tool["input_schema"]}
    if tool.get("strict") is True:
        function["strict"] = True
    return {"type": "function", "function": function}


def read_choice(choice: Json | None) -> tuple[str | Json | None, bool | None]:
    """Converts tool_choice to chat's form, and returns it with parallel_tool_calls or None. Raises BadRequest."""
    if choice is None:
        return None, None
    kind, alone = choice.get("type"), choice.get("disable_parallel_tool_use")
    if kind not in CHOICES:
        raise BadRequest(f"tool_choice.type must be one of: {', '.join(CHOICES)}", param="tool_choice.type")
    if alone is not None and not isinstance(alone, bool):
        text = "tool_choice.disable_parallel_tool_use accepts values true or false"
        raise BadRequest(text, param="tool_choice.disable_parallel_tool_use")
    several = None if alone is None else not alone
    if kind != "tool":
        return {"any": "required"}.get(kind, kind), several
    if not isinstance(choice.get("name"), str):
        raise BadRequest("tool_choice.name: Field required", param="tool_choice.name")
    return {"type": "function", "function": {"name": choice["name"]}}, several
