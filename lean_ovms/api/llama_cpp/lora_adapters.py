"""GET /lora-adapters of llama.cpp's server: the adapters of a model.

https://github.com/ggml-org/llama.cpp/blob/master/tools/server/README.md. A request takes an adapter as its `model`, so
the scale of each is 0: none is added to the model itself. A path is the adapter's name.
"""

from __future__ import annotations

from ...types import Request, Response
from ..generation.common_fields import MODEL
from ..response import json, model_name
from ..route_doc import RouteDoc
from ..services import Services
from .query import model_of


@RouteDoc("The adapters of a model, in llama.cpp's form", query=(MODEL,), errors=(404,), answer="array")
async def handle(request: Request, services: Services) -> Response:
    model = services.registry.get(model_name({"model": model_of(request, services)}))
    return json([{"id": number, "path": name, "scale": 0.0} for number, name in enumerate(model.adapters.models)])
