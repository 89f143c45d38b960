"""POST /api/chat and POST /api/generate: answers a conversation or a single prompt.

https://docs.ollama.com/api/chat, https://docs.ollama.com/api/generate. A request without messages or prompt only loads
the model.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from ....api.fields import RouteDoc
from ....api.response import json, warning_headers, written
from ....api.services import Services
from ....api.sse import EventStream
from ....models.generation import collect
from ....types import Json, Request, Response
from ...chat.logprobs import generated_size
from ..fields import CHAT, GENERATE
from .answer import NDJSON, Answer, OllamaRenderer, WithoutBlanks, envelope, ndjson
from .body import parse_body
from .request import LoadModelRequest, OllamaRequest, parse_chat, parse_generate

Parse = Callable[[Json, Services], OllamaRequest | LoadModelRequest]


@RouteDoc("The next message of a conversation, in Ollama's form", body=CHAT, media=(NDJSON,))
async def handle_chat(request: Request, services: Services) -> Response:
    return await _respond(request, services, parse_chat)


@RouteDoc("An answer to a prompt, in Ollama's form", body=GENERATE, media=(NDJSON,))
async def handle_generate(request: Request, services: Services) -> Response:
    return await _respond(request, services, parse_generate)


async def _respond(request: Request, services: Services, parse: Parse) -> Response:
    began = time.monotonic()
    parsed = await parse_body(request, services, parse)
    if isinstance(parsed, LoadModelRequest):
        reason, warnings = await parsed.run()
        empty = envelope(parsed.name, chat=parsed.chat)
        return json(empty | {"done": True, "done_reason": reason}, warning_headers(warnings))
    with await parsed.generation.model.hold():
        loaded_s = time.monotonic() - began
        generation = await parsed.start()
    answer, headers = Answer(parsed, generation, began, loaded_s), parsed.headers(generation)
    deltas = WithoutBlanks(generation)
    if parsed.generation.stream:
        return ndjson(EventStream(deltas, OllamaRenderer(answer), 0, done=b""), headers)
    try:
        [choice] = await collect(deltas, 1)
        size = generated_size(parsed.generation.sampling, generation.usage.completion_tokens)
        return await written(services.offload, size, lambda: answer.whole(choice), headers)
    finally:
        await generation.aclose()
