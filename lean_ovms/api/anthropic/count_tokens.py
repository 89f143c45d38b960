"""POST …/messages/count_tokens: how many tokens the prompt of a message would have. Generates nothing.

https://docs.anthropic.com/en/api/messages-count-tokens
"""

from __future__ import annotations

from ...types import Request, Response
from ..response import json
from ..route_doc import RouteDoc
from ..services import Services
from .fields import ALL_FIELDS
from .request import parse_count

BODY = tuple(field for field in ALL_FIELDS if field.name != "max_tokens")


@RouteDoc("How many tokens the prompt of a message would have", body=BODY)
async def handle(request: Request, services: Services) -> Response:
    asked = await services.parse_body(request, parse_count)
    return json({"input_tokens": await asked.count()}, asked.headers)
