"""POST …/chat/completions/input_tokens: how many tokens the prompt of a chat request would have. Generates nothing.

llama.cpp's server has it: https://github.com/ggml-org/llama.cpp/blob/master/tools/server/README.md. The answer is that
of /responses/input_tokens.
"""

from __future__ import annotations

from ...types import Request, Response
from ..response import json
from ..route_doc import RouteDoc
from ..services import Services
from .chat_request import ALL_FIELDS, parse_chat


@RouteDoc("How many tokens the prompt of a chat request would have", body=ALL_FIELDS)
async def handle(request: Request, services: Services) -> Response:
    chat = await services.parse_body(request, parse_chat)
    tokens = await chat.generation.count(chat.prompt)
    return json({"object": "response.input_tokens", "input_tokens": tokens}, chat.generation.headers)
