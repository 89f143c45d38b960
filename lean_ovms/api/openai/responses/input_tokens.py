"""POST …/responses/input_tokens: how many tokens the input of a response would have. Generates and keeps nothing.

https://platform.openai.com/docs/api-reference/responses/input-tokens
"""

from __future__ import annotations

from ....types import Request, Response
from ...app import App
from ...response import json
from ...router import RouteDoc, for_each_prefix
from .fields import ALL_FIELDS, SOME_INPUT
from .request import parse_response
from .service import ResponseService


async def handle(request: Request, app: App) -> Response:
    asked = await app.parse_body(request, parse_response)
    context = await app.service(ResponseService).store.context(asked.previous, asked.conversation, asked.items)
    tokens = await asked.generation.count(await asked.prompt(context.items, app))
    return json({"object": "response.input_tokens", "input_tokens": tokens})


DOC = RouteDoc(
    summary="How many tokens the input of a response would have",
    body=ALL_FIELDS,
    answer="InputTokens",
    rules=SOME_INPUT,
)
ROUTES = for_each_prefix("POST", "/responses/input_tokens", handle, doc=DOC, bare=True)
