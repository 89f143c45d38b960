"""GET …/models and …/models/{id} for clients of Anthropic's API, which send the header anthropic-version.

https://docs.anthropic.com/en/api/models-list
"""

from __future__ import annotations

from ....api.response import json
from ....api.services import Services
from ....errors import ModelNotFound
from ....models.model import Model
from ....types import Json, Request, Response
from .pages import page, written_time


async def handle_list(request: Request, services: Services) -> Response:
    """Returns the list of served models in Anthropic's form."""
    models = [describe(model) for model in services.registry.served if model.listed]
    return json(page(models, request.query))


async def handle_one(request: Request, services: Services) -> Response:
    """Returns one model, in Anthropic's form."""
    [name] = request.ids
    model = services.registry.get(name)
    if not model.listed:
        raise ModelNotFound("The model is not ready.", code="model_not_ready")
    return json(describe(model))


def describe(model: Model) -> Json:
    """Returns a model in Anthropic's form; its limits of tokens are included once the model is loaded."""
    length = model.info.context_length if model.known else None
    return {
        "type": "model",
        "id": model.name,
        "display_name": model.name,
        "created_at": written_time(model.created),
        "lifecycle": "active",
        "max_input_tokens": length,
        "max_tokens": length,
    }
