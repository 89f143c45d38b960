"""POST /sleep, POST /wake_up and GET /is_sleeping: free the memory of all models for a while, as in vLLM. POST /pause,
POST /resume and GET /is_paused only refuse requests meanwhile.

https://docs.vllm.ai/en/stable/features/sleep_mode.html. Weights cannot be kept outside of an engine, so levels 1 and 2
are the same; level 0 is a pause. Unlike in vLLM, running requests finish first, unless the mode is abort.
"""

from __future__ import annotations

from ....api.fields import Field, FieldSet, RouteDoc
from ....api.queries import read_query
from ....api.response import json
from ....api.services import Services
from ....errors import NotFound, Unavailable
from ....types import Request, Response
from ...deployment.manager import manager_of
from ...deployment.model_cache import ModelCache

_MODE = Field("mode", "string", "wait lets running requests finish; abort ends them with an error", default="wait",
    choices=("wait", "abort"), outside="mode must be one of: wait, abort")  # fmt: skip
QUERY = FieldSet((
    Field("level", "string", "0 only refuses requests; 1 and 2 also unload all models", default="1",
        choices=("0", "1", "2"), outside="level must be one of: 0, 1, 2"),
    _MODE,
))  # fmt: skip
PAUSE = FieldSet((
    _MODE,
    Field("clear_cache", "bool", "(vLLM) accepted without effect: the weights, and so the cached prompts, stay valid"),
))  # fmt: skip
TAGS = FieldSet((
    Field("tags", "string", "(vLLM) parts to load; this server always loads everything",
        choices=("weights", "kv_cache"), outside="tags must be one of: weights, kv_cache"),
))  # fmt: skip


@RouteDoc("Unload all models, and refuse requests until /wake_up", query=QUERY, errors=(404,))
async def handle_sleep(request: Request, services: Services) -> Response:
    given = read_query(QUERY, request.query)
    await _model_cache(services).sleep(keeps=given["level"] == "0", cut=given["mode"] == "abort")
    return json({"status": "sleeping", "level": int(given["level"])})


@RouteDoc("Refuse requests until /resume; the models stay in memory", query=PAUSE, errors=(404,))
async def handle_pause(request: Request, services: Services) -> Response:
    given = read_query(PAUSE, request.query)
    await _model_cache(services).sleep(keeps=True, cut=given["mode"] == "abort")
    return json({"status": "paused"})


@RouteDoc("Load the models that /sleep unloaded, and serve requests again", query=TAGS, errors=(404, 503))
async def handle_wake_up(request: Request, services: Services) -> Response:
    read_query(TAGS, request.query)
    await _wake_up(services)
    return json({"status": "awake", "tags": None})  # null stands for all


@RouteDoc("Serve requests again after /pause", errors=(404, 503))
async def handle_resume(request: Request, services: Services) -> Response:
    await _wake_up(services)
    return json({"status": "resumed"})


async def _wake_up(services: Services) -> None:
    if failed := await _model_cache(services).wake_up():
        raise Unavailable(f"These models could not be loaded: {', '.join(failed)}", code="model_not_loaded")


@RouteDoc("Whether the server is asleep or paused")
async def handle_is_sleeping(request: Request, services: Services) -> Response:
    return json({"is_sleeping": _is_asleep(services)})


@RouteDoc("Whether requests are refused, by /pause or /sleep")
async def handle_is_paused(request: Request, services: Services) -> Response:
    return json({"is_paused": _is_asleep(services)})


def _is_asleep(services: Services) -> bool:
    manager = manager_of(services)
    return manager is not None and manager.model_cache.asleep


def _model_cache(services: Services) -> ModelCache:
    manager = manager_of(services)
    if manager is None:
        raise NotFound("this server runs inside another program, which loads the models itself", code="not_managed")
    return manager.model_cache
