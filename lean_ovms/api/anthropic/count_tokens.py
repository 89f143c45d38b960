"""POST …/messages/count_tokens: how many tokens the prompt of a message would have. Generates nothing.

https://docs.anthropic.com/en/api/messages-count-tokens
"""

from __future__ import annotations

from ...types import Request, Response
from ..app import App
from ..response import json
from ..router import RouteDoc, for_each_prefix
from .fields import ALL_FIELDS
from .request import parse_count


async def handle(request: Request, app: App) -> Response:
    asked = await app.parse_body(request, parse_count)
    return json({"input_tokens": await asked.count()}, asked.headers)


BODY = tuple(field for field in ALL_FIELDS if field.name != "max_tokens")
DOC = RouteDoc(summary="How many tokens the prompt of a message would have", body=BODY, answer="AnthropicTokens")
ROUTES = for_each_prefix("POST", "/messages/count_tokens", handle, doc=DOC)
