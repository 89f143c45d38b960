"""POST …/responses/compact is not served: a compacted item is encrypted text that only OpenAI's models read."""

from __future__ import annotations

from ....errors import NotFound
from ....types import Request, Response
from ...app import App
from ...router import RouteDoc, for_each_prefix


async def handle(request: Request, app: App) -> Response:
    raise NotFound(
        "responses are not compacted here: ask the model for a summary with POST …/responses and go on from that, "
        "or send truncation: auto, which drops the oldest turns"
    )


DOC = RouteDoc(summary="Not served: says what to do instead of compacting", errors=(404,))
ROUTES = for_each_prefix("POST", "/responses/compact", handle, doc=DOC)
