"""GET …/models and …/models/{id}: which models are served. Ids may contain "/".

https://platform.openai.com/docs/api-reference/models. `created` is when the model was
configured, not the time of the request; only models that are ready are listed, as in OVMS, and those of a repository
while they load.
"""

from __future__ import annotations

from dataclasses import asdict

from ...config import SERVED_TASKS
from ...engine_types import ModelInfo
from ...errors import ModelNotFound
from ...models.model import Model
from ...pooling_types import VECTORS, PoolingInfo
from ...types import Json, Request, Response
from ..response import json
from ..route_doc import RouteDoc
from ..services import Services


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
    """OpenAI's model object. name: as it is asked for or listed.

    max_model_len, root (a path there, the model's own name here) and parent (the model that an adapter is for) are
    vLLM's additions, modalities are OpenRouter's, status (whether it is in memory) is that of llama.cpp's router, task
    (as OVMS names it), pooling, speech, voices, images and generates_by (which pipeline, and why) are ours. What only
    the engine knows is not there until the model has been loaded. No name may be one that Open WebUI takes for a
    feature of its own: to a model with the key pipeline it sends no chat, but a call of its pipelines.
    """
    return {
        "id": name,
        "object": "model",
        "created": model.created,
        "owned_by": "lean_ovms",
        "root": model.name,
        "status": {"value": "loaded" if model.loaded and model.state == "ready" else model.state},
        "task": model.config.task or SERVED_TASKS[0],
        "input_modalities": model.input_modalities,
        "output_modalities": model.output_modalities,
        **(_known(model.info) if model.known else {}),
        **({"parent": model.parent} if model.parent else {}),
    }


def _known(info: ModelInfo) -> Json:
    """What the engine reported."""
    voices = {} if info.voices is None else {"voices": asdict(info.voices)}
    if voices and "speech" not in info.capabilities:
        return voices
    if info.images is not None:
        return {"images": asdict(info.images)}
    if info.speech is not None:
        return {"speech": asdict(info.speech)}
    return {
        "max_model_len": info.context_length,
        **voices,
        **({} if info.pooling is None else {"pooling": _pooling(info.pooling)}),
        **({"generates_by": {"type": info.pipeline, "reason": info.pipeline_reason}} if info.pipeline else {}),
    }


def _pooling(info: PoolingInfo) -> Json:
    """What a model computes that does not generate, and how that was decided."""
    known: Json = {"kind": info.kind, "dimensions": info.dimensions}
    if info.kind in VECTORS:
        known["pooling"] = {"type": info.pooling, "source": info.pooling_source, "assumed": info.pooling_assumed}
        known["normalize"] = info.normalize
        known["matryoshka"] = info.matryoshka
        known["prompts"] = sorted(info.prompts)
    else:
        known["activation"] = info.activation
        known["labels"] = info.labels
    return known
