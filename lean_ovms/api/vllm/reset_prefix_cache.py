"""POST /reset_prefix_cache: all models forget what is cached of prompts, in memory, and on disk if that is asked for.

vLLM has it in its development mode only, and there blocks of running requests keep it from doing anything.
"""

from __future__ import annotations

from ...models.text_model import TextModel
from ...types import Request, Response
from ..fields import QUERY_BOOLEANS, Field
from ..route_doc import RouteDoc
from ..services import Services
from .query import one_of

QUERY = (
    Field("reset_running_requests", "bool", "no effect: running requests go on, and keep their blocks", default=False),
    Field("reset_external", "bool", "also remove the models' blocks in `--prefix_cache_path`", default=False),
)


@RouteDoc(
    "Forget the cached prompts of all loaded models, which PAGED has to serve", query=QUERY, errors=(503,), answer=""
)
async def handle(request: Request, services: Services) -> Response:
    one_of(request, "reset_running_requests", tuple(QUERY_BOOLEANS), "false")
    disk = QUERY_BOOLEANS[one_of(request, "reset_external", tuple(QUERY_BOOLEANS), "false")]
    for model in list(services.registry.models.values()):
        if isinstance(model, TextModel) and not model.adapter and model.loaded:
            await model.engine.reset_prefix_cache(disk=disk)
    return Response(200)
