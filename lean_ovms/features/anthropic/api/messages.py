"""POST …/messages and …/messages/count_tokens: Anthropic's Messages API with OVMS's and vLLM's sampling parameters.

https://docs.anthropic.com/en/api/messages. Not supported: server tools, MCP servers, files by their ids, citations.
"""

from __future__ import annotations

from ....api import sse
from ....api.fields import RouteDoc
from ....api.response import any_size, json, warning_headers
from ....api.services import Services
from ....observability.records import current_record
from ....types import Request, Response
from ....types.push import Sink
from .. import fields
from .blocks import Content
from .events import PING, MessageObject, MessageRenderer
from .request import parse_count, parse_message

COUNTED = tuple(field for field in fields.ALL_FIELDS if field.name != "max_tokens")


@RouteDoc("The next message of a conversation, in Anthropic's form", body=fields.ALL_FIELDS, stream=True)
async def handle(request: Request, services: Services) -> Response:
    parsed = await services.parse_body(request, parse_message)
    generation = await parsed.run(parsed.generation.start)
    headers = parsed.headers + warning_headers(generation.warnings)
    deltas = parsed.generation.deltas(generation)
    values = parsed.values
    message = MessageObject(
        model=parsed.generation.model.name,
        stops=values["stop_sequences"] or (),
        times=(lambda: deltas.timings) if values["timings"] or values["timings_per_token"] else None,
        timed_events=values["timings_per_token"],
    )
    omits = (values["thinking"] or {}).get("display") == "omitted"
    if parsed.generation.stream:
        record = current_record.get()
        renderer = MessageRenderer(message, record.request_id if record else "", omit_thinking=omits)
        opening = renderer.start(generation.usage)
        ping_s = services.config.sse_ping_s
        return sse.response(deltas, renderer, ping_s, headers, opening=opening, ping=PING, done=b"")
    content = Content(omit_thinking=omits)
    try:
        await deltas.push_to(Sink(content.feed))
        content.close()
        return await any_size(services.offload, message.full(content, generation.usage), headers)
    finally:
        await generation.aclose()


@RouteDoc("How many tokens the prompt of a message would have", body=COUNTED)
async def handle_count_tokens(request: Request, services: Services) -> Response:
    """Counts a conversation's tokens without generating: https://docs.anthropic.com/en/api/messages-count-tokens."""
    parsed = await services.parse_body(request, parse_count)
    return json({"input_tokens": await parsed.run(parsed.generation.count)}, parsed.headers)
