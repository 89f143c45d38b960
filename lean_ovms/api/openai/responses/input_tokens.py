"""POST …/responses/input_tokens: how many tokens the input of a response would have. Generates and keeps nothing.

https://platform.openai.com/docs/api-reference/responses/input-tokens
"""

from __future__ import annotations

from ....types import Request, Response
from ...response import json
from ...route_doc import RouteDoc
from ...services import Services
from .fields import ALL_FIELDS, SOME_INPUT
from .request import parse_response
from .service import ResponseService


@RouteDoc("How many tokens the input of a response would have", body=ALL_FIELDS, rules=SOME_INPUT)
async def handle(request: Request, services: Services) -> Response:
    asked = await services.parse_body(request, parse_response)
    context = await services.get(ResponseService).store.context(asked.previous, asked.conversation, asked.items)
    tokens = await asked.generation.count(await asked.prompt(context.items, services))
    return json({"object": "response.input_tokens", "input_tokens": tokens})
