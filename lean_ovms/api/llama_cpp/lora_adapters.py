"""GET /lora-adapters of llama.cpp's server: the adapters of a model.

https://github.com/ggml-org/llama.cpp/blob/master/tools/server/README.md. A request takes an adapter as its `model`, so
the scale of each is 0: none is added to the model itself. A path is the adapter's name.
"""

from __future__ import annotations

from ...types import Request, Response
from ..app import App
from ..generation.common_fields import MODEL
from ..response import json, model_name
from ..router import Route, RouteDoc
from .query import model_of


async def handle(request: Request, app: App) -> Response:
    model = app.registry.get(model_name({"model": model_of(request, app)}))
    return json([{"id": number, "path": name, "scale": 0.0} for number, name in enumerate(model.adapters.models)])


DOC = RouteDoc(
    summary="The adapters of a model, in llama.cpp's form", query=(MODEL,), answer="LlamaAdapters", errors=(404,)
)
ROUTES = [Route("GET", "/lora-adapters", handle, doc=DOC)]
