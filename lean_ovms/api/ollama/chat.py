"""POST /api/chat and POST /api/generate: an answer to a conversation or to one prompt.

https://docs.ollama.com/api/chat, https://docs.ollama.com/api/generate. Without messages or prompt the model is loaded.
"""

from __future__ import annotations

import time

from ...models.collect import collect
from ...types import Request, Response
from ..response import json, warning_headers
from ..route_doc import RouteDoc
from ..services import Services
from ..sse import EventStream
from .answer import NDJSON, Answer, OllamaRenderer, envelope
from .fields import CHAT, GENERATE
from .request import LoadModelRequest, OllamaRequest, headers, load, parse_chat, parse_generate, with_prompt

monotonic = time.monotonic
FIELDS = CHAT


@RouteDoc("The next message of a conversation, in Ollama's form", body=CHAT, media=(NDJSON,))
async def handle_chat(request: Request, services: Services) -> Response:
    began = monotonic()
    asked = await services.parse_body(request, parse_chat)
    if isinstance(asked, LoadModelRequest):
        return await _loaded(asked, chat=True)
    return await _respond(asked, began)


@RouteDoc("An answer to a prompt, in Ollama's form", body=GENERATE, media=(NDJSON,))
async def handle_generate(request: Request, services: Services) -> Response:
    began = monotonic()
    asked = await services.parse_body(request, parse_generate)
    if isinstance(asked, LoadModelRequest):
        return await _loaded(asked, chat=False)
    return await _respond(await with_prompt(asked), began)


async def _loaded(asked: LoadModelRequest, *, chat: bool) -> Response:
    reason, warnings = await load(asked)
    ended = {"done": True, "done_reason": reason}
    return json(envelope(asked.name, chat=chat) | ended, warning_headers(warnings))


async def _respond(asked: OllamaRequest, began: float) -> Response:
    with await asked.generation.model.hold():
        loaded_s = monotonic() - began
        generation = await asked.start()
    answer, warnings = Answer(asked, generation, began, loaded_s), headers(asked, generation)
    if asked.generation.stream:
        head = [("Content-Type", NDJSON), ("Cache-Control", "no-cache"), *warnings]
        return Response(200, head, EventStream(generation, OllamaRenderer(answer), 0, done=b""))
    try:
        [choice] = await collect(generation, 1)
        return json(answer.whole(choice), warnings)
    finally:
        await generation.aclose()
