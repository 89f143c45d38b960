"""POST …/responses/compact: replaces a conversation by the user's messages and a summary that the model writes.

https://platform.openai.com/docs/api-reference/responses/compact. The client sends the `output` as the input of its next
response; nothing is stored. A conversation that is too long for the model is summarized without its oldest turns.
"""

from __future__ import annotations

from ....api import schemas
from ....api.fields import FieldSet, RouteDoc
from ....api.response import json, now, warning_headers
from ....api.services import Services
from ....api.stored_objects import item_id
from ....errors import EngineFailure
from ....models.generation import collect
from ....types import Json, Request, Response
from .. import compaction
from ..fields import ALL_FIELDS
from ..request import ResponsesRequest, parse_response, read_request
from ..response import counts

_NAMES = (
    *("model", "input", "instructions", "previous_response_id", "max_output_tokens", "temperature", "top_p", "seed"),
    *("reasoning", "chat_template_kwargs", "keep_alive", "priority", "cache_salt"),
    *("prompt_cache_key", "prompt_cache_retention", "service_tier"),
)
MAX_TOKENS = 8192
"""Tokens of a summary, reasoning included, unless the request says otherwise: its client has no field for them."""
FIELDS = FieldSet(field for field in ALL_FIELDS if field.name in _NAMES)


@RouteDoc("Replace a conversation by a summary", body=FIELDS, rules=schemas.some_of("input", "previous_response_id"))
async def handle(request: Request, services: Services) -> Response:
    parsed, context = await read_request(request, services, _parse)
    items = compaction.current(context.items)
    generation = await parsed.start(items, services, compaction.asking)
    try:
        [choice] = await collect(generation, 1)
    finally:
        await generation.aclose()
    summary = choice.text.strip()
    if not summary:
        raise EngineFailure("the model did not write a summary; try again, possibly with a higher max_output_tokens")
    body = {
        "id": item_id("resp"),
        "object": "response.compaction",
        "created_at": now(),
        "output": [*compaction.kept(items, parsed.generation.model.info.context_length), compaction.item(summary)],
        "usage": counts(generation.usage),
    }
    return json(body, parsed.headers + warning_headers(generation.warnings))


def _parse(body: Json, services: Services) -> ResponsesRequest:
    """Reads a body, ignoring the fields that only POST …/responses has, which many clients send as well."""
    mine = {name: value for name, value in body.items() if name in FIELDS.names and value is not None}
    most = min(MAX_TOKENS, services.config.max_tokens_limit or MAX_TOKENS)
    return parse_response({"max_output_tokens": most, **mine, "truncation": "auto"}, services)
