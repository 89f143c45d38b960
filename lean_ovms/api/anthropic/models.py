"""GET …/models and …/models/{id} for clients of Anthropic's API, known by their header anthropic-version.

https://docs.anthropic.com/en/api/models-list
"""

from __future__ import annotations

from datetime import datetime, timezone

from ...errors import BadRequest, ModelNotFound
from ...models.model import Model
from ...types import Json, Request, Response
from ..fields import query_integer, read_parameters
from ..response import json
from ..routes import id_in
from ..services import Services

DEFAULT_LIMIT, MAX_LIMIT = 20, 1000


async def handle_list(request: Request, services: Services) -> Response:
    """The models served, in Anthropic's form."""
    given = read_parameters(request.query)
    models = [describe(model) for model in services.registry.served if model.listed]
    found, more = _page(models, given)
    return json(
        {
            "data": found,
            "has_more": more,
            "first_id": found[0]["id"] if found else None,
            "last_id": found[-1]["id"] if found else None,
        }
    )


def _page(models: list[Json], given: dict[str, str]) -> tuple[list[Json], bool]:
    """(one page of the models, whether there are more in its direction). Raises BadRequest."""
    requested, ids = query_integer(given, "limit"), [model["id"] for model in models]
    limit = DEFAULT_LIMIT if requested is None else requested
    if not 1 <= limit <= MAX_LIMIT:
        raise BadRequest(f"limit must be from 1 to {MAX_LIMIT}", param="limit")
    for name in ("after_id", "before_id"):
        if name in given and given[name] not in ids:
            raise BadRequest(f"{name} is not the id of a model", param=name)
    if "before_id" in given:
        end = ids.index(given["before_id"])
        return models[max(0, end - limit) : end], end > limit
    start = ids.index(given["after_id"]) + 1 if "after_id" in given else 0
    return models[start : start + limit], start + limit < len(models)


async def handle_one(request: Request, services: Services) -> Response:
    """One model, in Anthropic's form."""
    model = services.registry.get(id_in(request.path, "/models/{id}"))
    if not model.listed:
        raise ModelNotFound("the model is not ready", code="model_not_ready")
    return json(describe(model))


def describe(model: Model) -> Json:
    """Anthropic's model object; lengths are known when the model is ready."""
    length = model.info.context_length if model.known else None
    return {
        "type": "model",
        "id": model.name,
        "display_name": model.name,
        "created_at": datetime.fromtimestamp(model.created, timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "lifecycle": "active",
        "max_input_tokens": length,
        "max_tokens": length,
    }
