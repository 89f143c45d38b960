"""POST …/chat/completions/input_tokens: how many tokens the prompt of a chat request would have. Generates nothing.

llama.cpp's server has it: https://github.com/ggml-org/llama.cpp/blob/master/tools/server/README.md. The answer is that
of /responses/input_tokens.
"""

from __future__ import annotations

from ...types import Request, Response
from ..app import App
from ..response import json
from ..router import RouteDoc, for_each_prefix
from .chat_request import ALL_FIELDS, parse_chat


async def handle(request: Request, app: App) -> Response:
    chat = await app.parse_body(request, parse_chat)
    tokens = await chat.generation.count(chat.prompt)
    return json({"object": "response.input_tokens", "input_tokens": tokens}, chat.generation.headers)


DOC = RouteDoc(summary="How many tokens the prompt of a chat request would have", body=ALL_FIELDS, answer="InputTokens")
ROUTES = for_each_prefix("POST", "/chat/completions/input_tokens", handle, doc=DOC, bare=True)
