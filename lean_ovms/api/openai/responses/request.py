"""The body of POST …/responses, read: what to generate, what to keep, and what the answer repeats of it.

What cannot be honoured and would change the answer is refused; what would not is echoed. Knows no store and no stream.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from ....errors import TOO_LONG, BadRequest
from ....models.generation import Generation
from ....types import ChatPrompt, Json
from ...fields import Values
from ...generation.common_fields import template_kwargs
from ...generation.logprobs_request import LogprobsRequest
from ...generation.messages import map_developer_role, read_messages
from ...generation.request import BodyReader, GenerationBody
from ...generation.tools import read_offer
from ...response import warning_headers
from ...services import INLINE_BYTES, Services
from .agent_tools import ToolOrigin, read_agent_tools
from .echo import echo
from .fields import ALL_FIELDS, REFUSED, TEXT_FORMAT
from .items import read_input, to_messages

ITEM_BYTES = 64
"""What an item of a context takes at least, where its size is not known."""
DROPPED_SHARE = 8
"""An eighth of the turns is dropped at a time: few attempts with long conversations, few turns lost needlessly."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponsesRequest:
    """The body of a responses request. items: its own input, with references not resolved.

    current_turn: the reasoning before the user's last message is left out. echo: what the response object repeats.
    origins: of tools that are no plain functions. headers: Warning headers.
    token_ids, named_by_id, request_id, timings, timings_per_token: as in chunks.ChunkOptions.
    """

    generation: GenerationBody
    items: list[Json]
    instructions: str | None
    previous: str | None
    conversation: str | None
    store: bool
    background: bool
    obfuscate: bool
    shorten: bool
    current_turn: bool
    token_ids: bool
    named_by_id: bool
    request_id: str
    timings: bool
    timings_per_token: bool
    template_kwargs: Json
    echo: Json
    origins: dict[str, ToolOrigin]
    headers: list[tuple[str, str]]

    async def start(
        self, items: list[Json], services: Services, close: Callable[[list[Json]], list[Json]] = list
    ) -> Generation:
        """The running generation; with truncation auto without old turns that do not fit. Raises RequestError.

        close: adds the end of the prompt, which is no turn.
        """
        while True:
            try:
                return await self.generation.start(await self.prompt(close(items), services), echo=self.token_ids)
            except BadRequest as error:
                if error.param and error.param.startswith("messages"):
                    error.param = "input"
                less = drop_oldest_turns(items) if self.shorten and error.code == TOO_LONG else items
                if len(less) == len(items):
                    raise
                items = less

    async def prompt(self, items: list[Json], services: Services) -> ChatPrompt:
        """The prompt of a whole context; a long one is made beside the loop. Raises as _prompt."""
        return await services.offload.run(
            ITEM_BYTES * len(items), partial(self._prompt, items), inline_below=INLINE_BYTES
        )

    def _prompt(self, items: list[Json]) -> ChatPrompt:
        """Raises BadRequest for content that the model cannot read."""
        if self.current_turn:
            items = _without_older_reasoning(items)
        messages = to_messages(items)
        if self.instructions:
            messages.insert(0, {"role": "system", "content": self.instructions})
        messages = map_developer_role(messages, self.generation.model)
        try:
            read_messages(messages)
        except BadRequest as error:
            error.param = "input"
            raise
        return ChatPrompt(messages=messages, tools=self.generation.tools, template_kwargs=self.template_kwargs)


def parse_response(body: Json, services: Services) -> ResponsesRequest:
    """Raises RequestError."""
    _refuse(body)
    reader = BodyReader(ALL_FIELDS, body, services)
    values = reader.values
    _check_together(values)
    tools = read_agent_tools(values["tools"], values["tool_choice"])
    offer = read_offer(tools.functions, tools.choice, values["parallel_tool_calls"])
    if values["max_output_tokens"] == 0:
        raise BadRequest("max_output_tokens value should be greater than 0", param="max_output_tokens")
    reader.check_max_tokens("max_output_tokens")
    form = (values["text"] or {}).get("format", TEXT_FORMAT)
    listed = "message.output_text.logprobs" in (values["include"] or ())
    generation = reader.generation(
        {"max_tokens": values["max_output_tokens"], "text.format": None if form == TEXT_FORMAT else form},
        offer=offer,
        logprobs=LogprobsRequest(
            chosen=bool(values["logprobs"] or values["top_logprobs"] or listed), top=values["top_logprobs"] or 0
        ),
    )
    return ResponsesRequest(
        generation=generation,
        items=[] if values["input"] is None else read_input(values["input"]),
        instructions=values["instructions"],
        previous=values["previous_response_id"],
        conversation=values["conversation"],
        store=values["store"],
        background=values["background"],
        obfuscate=generation.stream_options["include_obfuscation"],
        shorten=values["truncation"] == "auto",
        current_turn=(values["reasoning"] or {}).get("context") == "current_turn",
        token_ids=values["return_token_ids"],
        named_by_id=generation.named_by_id,
        request_id=values["request_id"] or "",
        timings=values["timings"] or values["timings_per_token"],
        timings_per_token=values["timings_per_token"],
        template_kwargs=_template_kwargs(values),
        echo=echo(values, tools, generation),
        origins=tools.origins,
        headers=generation.headers + warning_headers(tools.warnings),
    )


def _refuse(body: Json) -> None:
    for name, why in REFUSED.items():
        if body.get(name):
            raise BadRequest(why, param=name)


def _check_together(values: Values) -> None:
    if values["input"] is None and not values["previous_response_id"] and not values["conversation"]:
        raise BadRequest("input missing in request", param="input")
    if values["previous_response_id"] and values["conversation"]:
        raise BadRequest("previous_response_id and conversation exclude each other", param="previous_response_id")
    if not values["store"]:
        for name in ("background", "conversation"):
            if values[name]:
                raise BadRequest(f"{name} needs store: with store false nothing is kept", param=name)


def _template_kwargs(values: Values) -> Json:
    asked = {
        "reasoning_effort": (values["reasoning"] or {}).get("effort"),
        "verbosity": (values["text"] or {}).get("verbosity"),
    }
    return template_kwargs({**values, **asked})


def _without_older_reasoning(items: list[Json]) -> list[Json]:
    """The items without the reasoning before the last message of the user."""
    last = max((place for place, item in enumerate(items) if item.get("role") == "user"), default=0)
    return [item for item in items[:last] if item["type"] != "reasoning"] + items[last:]


def drop_oldest_turns(items: list[Json]) -> list[Json]:
    """The items without the oldest turns, for truncation auto; the same items if there is only one turn.

    A turn is a user message and all that follows it, so a call is never separated from its output. System and
    developer messages stay.
    """
    starts = [place for place, item in enumerate(items) if item.get("role") == "user"]
    if len(starts) < 2:
        return items
    end = starts[max(1, len(starts) // DROPPED_SHARE)]
    return [item for item in items[:end] if item.get("role") in ("system", "developer")] + items[end:]
