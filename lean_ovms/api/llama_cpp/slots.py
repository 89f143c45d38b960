"""GET /slots of llama.cpp's server: how many sequences run. A slot has nothing of the request in it.

https://github.com/ggml-org/llama.cpp/blob/master/tools/server/README.md. Sequences share the KV cache here and have no
place of their own: of --max_num_seqs slots the first ones are those that run.
"""

from __future__ import annotations

import asyncio
from urllib.parse import parse_qs

from ...errors import Unavailable
from ...models.text_model import TextModel
from ...types import Request, Response
from ..fields import Field
from ..generation.common_fields import MODEL
from ..response import json
from ..route_doc import RouteDoc
from ..services import Services
from .query import model_of

TIMEOUT_S = 10.0
"""The engine answers between two steps."""
FAIL = Field("fail_on_no_slot", "string", "503 if every slot is busy")


@RouteDoc("How many sequences run, in llama.cpp's form", query=(MODEL, FAIL), errors=(404, 503), answer="array")
async def handle(request: Request, services: Services) -> Response:
    name = model_of(request, services)

    async def find() -> TextModel:
        return services.default_model({"model": name}).serving()

    model = await services.when_known(find)
    try:
        stats = await asyncio.wait_for(model.stats(), TIMEOUT_S)
    except asyncio.TimeoutError:
        raise Unavailable("the engine does not answer: it is in a long step") from None
    slots = model.config.max_num_seqs
    if stats.running >= slots and parse_qs(request.query).get("fail_on_no_slot"):
        raise Unavailable("no slot available", code="no_slot")
    same = {"n_ctx": model.info.context_length, "speculative": bool(model.info.speculative)}
    return json([{"id": slot, **same, "is_processing": slot < stats.running} for slot in range(slots)])
