"""The query of llama.cpp's GET endpoints."""

from __future__ import annotations

from ...models.text_model import TextModel
from ...types import Request
from ..fields import read_parameters
from ..services import Services


def model_of(request: Request, services: Services) -> str:
    """The name of the model that the query names, else of the default one; "" if there is none."""
    return read_parameters(request.query).get("model") or services.registry.default_of(TextModel)
