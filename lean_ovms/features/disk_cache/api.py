"""POST /prefix_cache/save, restore and reset: saves, reads and clears the prefix caches of all loaded models.

/reset_prefix_cache is vLLM's name for reset. vLLM has it in its development mode only, where it has no effect while
requests are running.
"""

from __future__ import annotations

from ...api.fields import Field, FieldSet, RouteDoc
from ...api.queries import read_query
from ...api.response import json, warning_headers
from ...api.services import Services
from ...engine.protocol import ResetPrefixCache
from ...errors import NotSupported, StoreFailure, counted
from ...models.text_model import TextModel
from ...types import Request, Response
from .feature import DiskCacheOptions
from .records import BlocksOnDisk, DiskCacheAction

QUERY = FieldSet((
    Field("reset_running_requests", "bool",
        "accepted without effect: running requests continue, and keep their blocks", default=False),
    Field("reset_external", "bool", "also remove the blocks in `--prefix_cache_path`", default=False),
))  # fmt: skip


@RouteDoc(
    "Forget the cached prompts of all loaded models with the pipeline PAGED", query=QUERY, errors=(503,), answer=""
)
async def handle(request: Request, services: Services) -> Response:
    disk, kept = read_query(QUERY, request.query)["reset_external"], []
    for model in _text_models(services):
        if model.loaded:
            await model.engine.call_each(lambda number: ResetPrefixCache(number, disk))
        if model.config.of(DiskCacheOptions).prefix_cache_path and not (disk and model.loaded):
            why = "the model is not loaded" if disk else "reset_external=true also removes them"
            kept.append(f"the blocks of {model.name} in --prefix_cache_path are kept: {why}")
    return Response(200, warning_headers(kept))


@RouteDoc("Write the cached prompts of loaded models to `--prefix_cache_path` now", errors=(501, 503))
async def handle_save(request: Request, services: Services) -> Response:
    return await _on_disk(services, "save")


@RouteDoc("Count the blocks in `--prefix_cache_path`, including those of other processes", errors=(501, 503))
async def handle_restore(request: Request, services: Services) -> Response:
    return await _on_disk(services, "restore")


async def _on_disk(services: Services, action: str) -> Response:
    models = [model for model in _text_models(services) if model.config.of(DiskCacheOptions).prefix_cache_path]
    if not models:
        raise NotSupported("This server has no prefix cache on disk; start it with `--prefix_cache_path`")
    data = []
    for model in models:
        if model.loaded:
            found: list[BlocksOnDisk] = await model.engine.call_each(lambda number: DiskCacheAction(number, action))
            if failed := sum(one.failed for one in found):
                raise StoreFailure(
                    f"{counted(failed, 'block')} of {model.name} could not be written; the server's log says why"
                )
            # All processes find the same blocks, so their counts are not added.
            all_of = sum if action == "save" else max
            counts = {"blocks": all_of(one.blocks for one in found), "bytes": all_of(one.bytes for one in found)}
            data.append({"model": model.name, **counts})
    return json({"object": "list", "data": data})


def _text_models(services: Services) -> list[TextModel]:
    models = services.registry.models.values()
    return [model for model in models if isinstance(model, TextModel) and not model.adapter]
