"""The parsed body of POST …/responses, and the start of its generation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from ...api.fields import Values
from ...api.generation.common_fields import template_kwargs
from ...api.services import INLINE_BYTES, Services
from ...errors import TOO_LONG, BadRequest, errors_of
from ...models.generation import Generation
from ...types import ChatPrompt, Json
from ..chat.generation import GenerationBody
from ..chat.request import AnswerAudio, errors_of_input, read_messages
from .agent_tools import AgentTools
from .compaction import role_of
from .items import to_messages
from .response import ResponseObject

ITEM_BYTES, TOOL_BYTES = 64, 512
"""The bytes that an item of a context, and a tool of an MCP server, count as if their sizes are not known."""
DROPPED_SHARE = 8
"""An eighth of the turns is dropped at a time: few attempts with long conversations, few turns lost needlessly."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponsesRequest:
    """The parsed body of a request for a response."""

    values: Values
    """The value of every field of the body, by name."""
    generation: GenerationBody
    """The parameters of the generation."""
    tools: AgentTools
    """The tools of the request."""
    offering: Callable[[Any, Any], GenerationBody]
    """Returns the generation with other functions and another tool_choice."""
    tool_bytes: int
    """The size of the request's own tools as JSON."""
    items: list[Json]
    """The input items of the request, in which references to stored items are not resolved yet."""
    response: Callable[..., ResponseObject]
    """Makes the response object; its keyword arguments are those fields that are known only when it starts."""
    audio: AnswerAudio | None
    """How the answer is spoken; None if it is not spoken."""
    headers: list[tuple[str, str]]
    """The Warning headers of the response."""

    async def start(
        self, items: list[Json], services: Services, close: Callable[[list[Json]], list[Json]] = list
    ) -> Generation:
        """Starts the generation. With truncation auto, the oldest turns are left out until the prompt fits.

        Args:
            items: The items of the conversation, those of this request included.
            services: The options and the state of the server.
            close: Adds items at the end of the prompt that are not part of the conversation.

        Returns:
            The running generation.

        Raises:
            RequestError: The prompt is too long or not valid, or the engine refuses it.
        """
        while True:
            try:
                with errors_of_input("input"):
                    return await self.generation.start(
                        await self.prompt(close(items), services), echo=self.values["return_token_ids"]
                    )
            except BadRequest as error:
                shortens = self.values["truncation"] == "auto" and error.code == TOO_LONG
                less = drop_oldest_turns(items) if shortens else items
                if len(less) == len(items):
                    raise
                items = less

    async def prompt(self, items: list[Json], services: Services) -> ChatPrompt:
        """Makes the prompt of a conversation, in the offload thread if it is long or has large tools.

        Raises BadRequest if an item has content that the model cannot read.
        """
        from_servers = len(self.generation.tools) if self.tools.mcp else 0
        cost = ITEM_BYTES * len(items) + self.tool_bytes + TOOL_BYTES * from_servers
        return await services.offload.run(cost, partial(self._prompt, items), inline_below=INLINE_BYTES)

    def _prompt(self, items: list[Json]) -> ChatPrompt:
        """Makes the prompt of a conversation. Raises BadRequest if an item has content that the model cannot read."""
        if (self.values["reasoning"] or {}).get("context") == "current_turn":
            items = _without_older_reasoning(items)
        messages = to_messages(items)
        if self.values["instructions"]:
            messages.insert(0, {"role": "system", "content": self.values["instructions"]})
        with errors_of("input"):
            read_messages(messages, self.generation.services.config.composition)
        kwargs = _template_kwargs(self.values)
        loaded = self.tools.loaded
        tools = [tool for tool in self.generation.tools if tool["function"]["name"] not in loaded]
        return ChatPrompt(
            messages=messages,
            tools=tools,
            template_kwargs=kwargs,
            continue_final_message=bool(items) and _is_begun(items[-1]),
        )


def _is_begun(item: Json) -> bool:
    """Returns whether an item is an answer with some text that is not complete: the model continues it, as in vLLM."""
    if item["type"] != "message" or item["role"] != "assistant" or item["status"] != "incomplete":
        return False
    return any(part.get("text") for part in item["content"])


def _template_kwargs(values: Values) -> Json:
    parsed = {
        "reasoning_effort": (values["reasoning"] or {}).get("effort"),
        "verbosity": (values["text"] or {}).get("verbosity"),
    }
    return template_kwargs({**values, **parsed})


def _without_older_reasoning(items: list[Json]) -> list[Json]:
    """Drops the reasoning items before the last message of the user."""
    last = max((place for place, item in enumerate(items) if role_of(item) == "user"), default=0)
    return [item for item in items[:last] if item["type"] != "reasoning"] + items[last:]


def drop_oldest_turns(items: list[Json]) -> list[Json]:
    """Drops the oldest turns, for truncation auto. Returns the same items if there is only one turn.

    A turn is a user message and all that follows it, so a call is never separated from its output. System and
    developer messages stay.
    """
    starts = [place for place, item in enumerate(items) if role_of(item) == "user"]
    if len(starts) < 2:
        return items
    end = starts[max(1, len(starts) // DROPPED_SHARE)]
    return [item for item in items[:end] if role_of(item) in ("system", "developer")] + items[end:]
