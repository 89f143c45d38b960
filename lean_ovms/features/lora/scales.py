"""GET and POST /lora-adapters: the scales with which requests to a model itself use its adapters.

https://github.com/ggml-org/llama.cpp/blob/master/tools/server/README.md. No path leaves this server, so that of an
adapter is its name.
"""

from __future__ import annotations

from ...api.fields import FieldSet, RouteDoc, Values, json_value, read
from ...api.generation.common_fields import MODEL
from ...api.generation.sampling import SAMPLING
from ...api.queries import read_query
from ...api.response import json, model_name
from ...api.schemas import field_schema
from ...api.services import INLINE_BYTES, Services
from ...errors import BadRequest, NotSupported
from ...models.model import Model
from ...models.text_model import TextModel
from ...types import Request, Response
from .model import LoraSet

QUERY = FieldSet((MODEL,))
SCALES = FieldSet((SAMPLING.named("lora"),))
BODY = field_schema(SCALES[0], nullable=False)


def _model(request: Request, services: Services) -> Model:
    """Returns the model in the query, or the default model. Raises NotFound."""
    name = read_query(QUERY, request.query)["model"] or services.registry.default_of(TextModel)
    return services.registry.get(model_name({"model": name}))


@RouteDoc("LoRA adapters with their scales", query=QUERY, errors=(404,), answer="array")
async def handle(request: Request, services: Services) -> Response:
    adapters = _model(request, services).adapters
    scales = adapters.scales if isinstance(adapters, LoraSet) else {}
    return json([{"id": place, "path": name, "scale": scales[name]} for place, name in enumerate(adapters.models)])


@RouteDoc("Set the scales of LoRA adapters", query=QUERY, rules=BODY, errors=(404, 501))
async def handle_change(request: Request, services: Services) -> Response:
    """Takes an array of objects with the id and the scale of an adapter."""
    model = _model(request, services)

    def parse() -> Values:
        return read(SCALES, {"lora": json_value(request, services.config.max_body_values)})

    if (scales := (await services.offload.run(request.size, parse, inline_below=INLINE_BYTES))["lora"]) is None:
        raise BadRequest("the body must be an array of objects with id and scale")
    with await model.hold() as held:
        adapters = held.adapters
        if not adapters.models:
            raise NotSupported("this model has no adapters: start the server with --lora or --lora_modules")
        if not isinstance(adapters, LoraSet) or not adapters.shared:
            raise NotSupported("adapters of this model are only served under their own names (PAGED applies them)")
        adapters.scales = adapters.by_name(scales)
    return json({"success": True})
