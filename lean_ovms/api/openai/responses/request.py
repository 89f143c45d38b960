"""The body of POST …/responses, read: what to generate, what to keep, and what the answer repeats of it.

What cannot be honoured and would change the answer is refused; what would not is echoed. Knows no store and no stream.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

from ....errors import BadRequest
from ....types import ChatPrompt, Json, OutputConstraint, SamplingParams
from ...app import BRIEF_BYTES, App
from ...generation.common_fields import RESPONSE_STREAM_OPTIONS, stream_options, template_kwargs
from ...generation.messages import map_developer_role, read_messages
from ...generation.request import GenerationRequest, RequestParser
from ...generation.structured_output import read_guide
from .echo import echo, without_nulls
from .fields import REFUSED, ROWS, TEXT_FORMAT
from .items import read_input, to_messages

ITEM_BYTES = 64
"""What an item of a context takes at least, where its size is not known."""
DROPPED_SHARE = 8
"""An eighth of the turns is dropped at a time: few attempts with long conversations, few turns lost needlessly."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponsesRequest:
    """A responses request, read. items: its own input, with references not resolved.

    echo: what the response object repeats. tools: those the model may call now. token_ids, named_by_id, request_id: as
    in chunks.ChunkOptions.
    """

    order: GenerationRequest
    items: list[Json]
    instructions: str | None
    previous: str | None
    conversation: str | None
    store: bool
    background: bool
    obfuscate: bool
    shorten: bool
    token_ids: bool
    named_by_id: bool
    request_id: str
    tools: list[Json]
    template_kwargs: Json
    echo: Json

    async def prompt(self, items: list[Json], app: App) -> ChatPrompt:
        """The prompt of a whole context; a long one is made beside the loop. Raises as _prompt."""
        return await app.aside.run(ITEM_BYTES * len(items), partial(self._prompt, items), brief=BRIEF_BYTES)

    def _prompt(self, items: list[Json]) -> ChatPrompt:
        """Raises BadRequest for content that the model cannot read."""
        messages = to_messages(items)
        if self.instructions:
            messages.insert(0, {"role": "system", "content": self.instructions})
        messages = map_developer_role(messages, self.order.model)
        try:
            read_messages(messages)
        except BadRequest as error:
            error.param = "input"
            raise
        return ChatPrompt(messages=messages, tools=self.tools, template_kwargs=self.template_kwargs)


def read_ask(body: Json, app: App) -> ResponsesRequest:
    """Body to Ask. Raises RequestError."""
    _refuse(body)
    reading = RequestParser(ROWS, body, app)
    values = reading.values
    options = stream_options(RESPONSE_STREAM_OPTIONS, values)
    _check_together(values)
    offer = reading.offer(without_nulls(values["tools"]))
    sampling = _sampling(reading)
    order = reading.order(sampling, _guide(reading), offer, parse=True)
    return ResponsesRequest(
        order=order,
        items=[] if values["input"] is None else read_input(values["input"]),
        instructions=values["instructions"],
        previous=values["previous_response_id"],
        conversation=values["conversation"],
        store=values["store"],
        background=values["background"],
        obfuscate=options["include_obfuscation"],
        shorten=values["truncation"] == "auto",
        token_ids=values["return_token_ids"],
        named_by_id=values["return_tokens_as_token_ids"],
        request_id=values["request_id"] or "",
        tools=offer.tools,
        template_kwargs=_template_kwargs(values),
        echo=echo(values, sampling),
    )


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


def _refuse(body: Json) -> None:
    for name, why in REFUSED.items():
        if body.get(name):
            raise BadRequest(why, param=name)


def _check_together(values: Json) -> None:
    if values["input"] is None and not values["previous_response_id"] and not values["conversation"]:
        raise BadRequest("input missing in request", param="input")
    if values["previous_response_id"] and values["conversation"]:
        raise BadRequest("previous_response_id and conversation exclude each other", param="previous_response_id")
    if not values["store"]:
        for name in ("background", "conversation"):
            if values[name]:
                raise BadRequest(f"{name} needs store: with store false nothing is kept", param=name)


def _sampling(reading: RequestParser) -> SamplingParams:
    values = reading.values
    if values["max_output_tokens"] == 0:
        raise BadRequest("max_output_tokens value should be greater than 0", param="max_output_tokens")
    values["max_tokens"] = reading.limited("max_output_tokens")
    return reading.sampling(logprobs=_wants_logprobs(values))


def _wants_logprobs(values: Json) -> bool:
    return bool(
        values["logprobs"] or values["top_logprobs"] or "message.output_text.logprobs" in (values["include"] or ())
    )


def _guide(reading: RequestParser) -> tuple[OutputConstraint | None, list[str]]:
    """The form of the answer, from OpenAI's text.format or from OVMS's and vLLM's fields. Raises BadRequest."""
    values = reading.values
    form = (values["text"] or {}).get("format", TEXT_FORMAT)
    if form == TEXT_FORMAT:
        return reading.guide()
    if values["response_format"] is not None:
        raise BadRequest("text.format and response_format exclude each other", param="text.format")
    try:
        guide, dropped = read_guide({**values, "response_format": form}, reading.config)
    except BadRequest as error:
        error.param = _in_text(error.param or "")
        error.message = _in_text(error.message)
        raise
    return guide and replace(guide, param=_in_text(guide.param)), [_in_text(text) for text in dropped]


def _in_text(said: str) -> str:
    """The name under which the client knows it."""
    return said.replace("response_format", "text.format")


def _template_kwargs(values: Json) -> Json:
    asked = {
        "reasoning_effort": (values["reasoning"] or {}).get("effort"),
        "verbosity": (values["text"] or {}).get("verbosity"),
    }
    return template_kwargs(values | asked)
