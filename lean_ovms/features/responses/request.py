"""The body of POST …/responses, read: what to generate, what to keep, and what the answer repeats of it. Knows no
stream."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from ...api.fields import Values
from ...api.generation.common_fields import template_kwargs
from ...api.generation.request import AnswerAudio, GenerationBody
from ...api.services import INLINE_BYTES, Services
from ...errors import TOO_LONG, BadRequest
from ...models.generation import Generation
from ...types import ChatPrompt, Json
from ..chat.messages import read_messages
from .agent_tools import AgentTools
from .items import to_messages
from .response import ResponseObject

ITEM_BYTES = 64
"""What an item of a context takes at least, where its size is not known."""
DROPPED_SHARE = 8
"""An eighth of the turns is dropped at a time: few attempts with long conversations, few turns lost needlessly."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponsesRequest:
    """The body of a responses request."""

    values: Values
    """The values of its fields."""
    generation: GenerationBody
    """What is generated."""
    tools: AgentTools
    """The tools of the request."""
    offering: Callable[[Any, Any], GenerationBody] | None
    """Returns the generation with other functions and another tool_choice; None without tools of servers."""
    items: list[Json]
    """The input of the request, with references that are not resolved."""
    response: Callable[..., ResponseObject]
    """Makes the response object of its ids and times."""
    audio: AnswerAudio | None
    """How the answer is spoken; None: it is not."""
    headers: list[tuple[str, str]]
    """The Warning headers."""

    async def start(
        self, items: list[Json], services: Services, close: Callable[[list[Json]], list[Json]] = list
    ) -> Generation:
        """Starts the generation. With truncation auto, old turns that do not fit are left out.

        Args:
            items: The items of the conversation, those of this request included.
            services: The options, and the state of the server.
            close: Adds the end of the prompt, which is no turn of the conversation.

        Returns:
            The running generation.

        Raises:
            RequestError: The prompt is too long or not valid, or the engine refuses it.
        """
        while True:
            try:
                return await self.generation.start(
                    await self.prompt(close(items), services), echo=self.values["return_token_ids"]
                )
            except BadRequest as error:
                if error.param and error.param.startswith("messages"):
                    error.param = "input"
                shortens = self.values["truncation"] == "auto" and error.code == TOO_LONG
                less = drop_oldest_turns(items) if shortens else items
                if len(less) == len(items):
                    raise
                items = less

    async def prompt(self, items: list[Json], services: Services) -> ChatPrompt:
        """Returns the prompt of a whole context; a long one is made in the offload thread. Raises as _prompt."""
        return await services.offload.run(
            ITEM_BYTES * len(items), partial(self._prompt, items), inline_below=INLINE_BYTES
        )

    def _prompt(self, items: list[Json]) -> ChatPrompt:
        """Raises BadRequest for content that the model cannot read."""
        if (self.values["reasoning"] or {}).get("context") == "current_turn":
            items = _without_older_reasoning(items)
        messages = to_messages(items)
        if self.values["instructions"]:
            messages.insert(0, {"role": "system", "content": self.values["instructions"]})
        try:
            read_messages(messages, self.generation.services.config.composition)
        except BadRequest as error:
            error.param = "input"
            raise
        kwargs = _template_kwargs(self.values)
        return ChatPrompt(messages=messages, tools=self.generation.tools, template_kwargs=kwargs)


def _template_kwargs(values: Values) -> Json:
    parsed = {
        "reasoning_effort": (values["reasoning"] or {}).get("effort"),
        "verbosity": (values["text"] or {}).get("verbosity"),
    }
    return template_kwargs({**values, **parsed})


def _without_older_reasoning(items: list[Json]) -> list[Json]:
    """Returns the items without the reasoning before the last message of the user."""
    last = max((place for place, item in enumerate(items) if item.get("role") == "user"), default=0)
    return [item for item in items[:last] if item["type"] != "reasoning"] + items[last:]


def drop_oldest_turns(items: list[Json]) -> list[Json]:
    """Returns the items without the oldest turns, for truncation auto; the same items if there is only one turn.

    A turn is a user message and all that follows it, so a call is never separated from its output. System and
    developer messages stay.
    """
    starts = [place for place, item in enumerate(items) if item.get("role") == "user"]
    if len(starts) < 2:
        return items
    end = starts[max(1, len(starts) // DROPPED_SHARE)]
    return [item for item in items[:end] if item.get("role") in ("system", "developer")] + items[end:]
