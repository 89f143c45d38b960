"""GET …/models and …/models/{id}: which models are served. Ids may contain "/".

https://platform.openai.com/docs/api-reference/models. `created` is when the model was
configured, not the time of the request; only models that are ready are listed, as in OVMS, and those of a repository
while they load.
"""

from __future__ import annotations

from ...api.fields import RouteDoc
from ...api.response import json
from ...api.services import Services
from ...composition import TEXT_GENERATION
from ...errors import ModelNotFound
from ...models.model import Model
from ...types import Json, Request, Response


@RouteDoc("The models served")
async def handle_list(request: Request, services: Services) -> Response:
    return json(
        {"data": [describe(m, name) for name, m in services.registry.names.items() if m.listed], "object": "list"}
    )


@RouteDoc("One model")
async def handle_one(request: Request, services: Services) -> Response:
    [name] = request.ids
    model = services.registry.get(name)
    if not model.listed:
        raise ModelNotFound("the model is not ready", code="model_not_ready")
    return json(describe(model, name))


def describe(model: Model, name: str) -> Json:
    """Returns OpenAI's model object.

    Some fields are others' additions: max_model_len, root (a path there, the model's own name here) and parent (the
    model that an adapter is for) are vLLM's additions, modalities are OpenRouter's, status (whether it is in memory) is
    that of llama.cpp's router, task (as OVMS names it), pooling, speech, voices, images and generates_by (which
    pipeline, and why) are ours. What only the engine knows is not there until the model has been loaded. No name may be
    one that Open WebUI takes for a feature of its own: to a model with the key pipeline it sends no chat, but a call of
    its pipelines.

    Args:
        model: The model.
        name: The name by which it was asked for or is listed.
    """
    return {
        "id": name,
        "object": "model",
        "created": model.created,
        "owned_by": "lean_ovms",
        "root": model.name,
        "status": {"value": "loaded" if model.loaded and model.state == "ready" else model.state},
        "task": model.config.task or TEXT_GENERATION.name,
        "input_modalities": model.input_modalities,
        "output_modalities": model.output_modalities,
        **(model.reported if model.known else {}),
        **({"parent": model.parent} if model.parent else {}),
    }
