"""GET …/models and …/models/{id}: the served models. Ids may contain "/".

https://platform.openai.com/docs/api-reference/models. `created` is the time at which the model was configured. Only
models that are ready are listed, as in OVMS, and those of a repository also while they load.
"""

from __future__ import annotations

from ...api.fields import RouteDoc
from ...api.response import json
from ...api.services import Services
from ...composition import TEXT_GENERATION
from ...errors import ModelNotFound
from ...models.model import Model
from ...types import Json, Request, Response


@RouteDoc("The served models")
async def handle_list(request: Request, services: Services) -> Response:
    return json(
        {"data": [describe(m, name) for name, m in services.registry.names.items() if m.listed], "object": "list"}
    )


@RouteDoc("One model")
async def handle_one(request: Request, services: Services) -> Response:
    [name] = request.ids
    model = services.registry.get(name)
    if not model.listed:
        raise ModelNotFound("The model is not ready.", code="model_not_ready")
    return json(describe(model, name))


def describe(model: Model, name: str) -> Json:
    """Returns OpenAI's model object with further members.

    max_model_len, root (a path there, the model's own name here) and parent (the model to which an adapter belongs) are
    vLLM's; modalities are OpenRouter's, those in architecture also llama.cpp's; meta.n_ctx (the same as max_model_len)
    is llama.cpp's, and status (whether it is in memory) that of its router; task (as OVMS names it), pooling, speech,
    voices, images and generates_by (the pipeline, and the reason) are this server's. Members that only the engine knows
    are missing until the model has been loaded. No member may have a name that Open WebUI interprets: to a model with
    the key `pipeline` it sends calls of its pipelines instead of chats.

    Args:
        model: The model.
        name: The name by which it was requested or is listed.
    """
    reported = model.reported if model.known else {}
    length = reported.get("max_model_len")
    modalities = {"input_modalities": model.input_modalities, "output_modalities": model.output_modalities}
    return {
        "id": name,
        "object": "model",
        "created": model.created,
        "owned_by": "lean_ovms",
        "root": model.name,
        "status": {"value": "loaded" if model.loaded and model.state == "ready" else model.state},
        "task": model.config.task or TEXT_GENERATION.name,
        **modalities,
        "architecture": modalities,
        **reported,
        **({"meta": {"n_ctx": length}} if length else {}),
        **({"parent": model.parent} if model.parent else {}),
    }
