"""POST /models/load and POST /models/unload of llama.cpp's router: load and unload models by hand.

https://github.com/ggml-org/llama.cpp/blob/master/tools/server/README.md. Unlike there, the response is sent when the
work is done, and loading a loaded model is not an error. GET …/models has each model's `status`.
"""

from __future__ import annotations

from ....api.fields import Field, FieldSet, RouteDoc, read
from ....api.response import json, model_name
from ....api.services import Services
from ....errors import BadRequest, NotFound, Unavailable
from ....models.model import Model
from ....types import Request, Response

FIELDS = FieldSet((Field("model", "string", "name of a configured model", required=True),))


@RouteDoc("Load a model now", body=FIELDS, errors=(404, 429, 503))
async def handle_load(request: Request, services: Services) -> Response:
    model = await _model(request, services)
    with await model.hold():
        return json({"success": True})


@RouteDoc(
    "Unload a model once its running requests have finished; the next request loads it again",
    body=FIELDS,
    errors=(404, 503),
)
async def handle_unload(request: Request, services: Services) -> Response:
    model = await _model(request, services)
    if model.residence is None:
        raise NotFound("this server runs inside another program, which loads the models itself", code="not_managed")
    if not model.on_demand:
        raise Unavailable("The model is being loaded for the first time.", code="model_not_ready")
    await model.residence.unload()
    return json({"success": True})


async def _model(request: Request, services: Services) -> Model:
    """Returns the model that the body names. Raises RequestError."""
    name: str = await services.parse_body(request, lambda body, _: model_name(read(FIELDS, body)))
    model = services.registry.get(name)
    if model.parent:
        raise BadRequest(f"a LoRA adapter is loaded and unloaded with its model, {model.parent}", param="model")
    return model
