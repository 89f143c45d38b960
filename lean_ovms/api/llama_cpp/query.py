"""The query of llama.cpp's GET endpoints."""

from __future__ import annotations

from urllib.parse import parse_qs

from ...models.text_model import TextModel
from ...types import Request
from ..services import Services


def model_of(request: Request, services: Services) -> str:
    """The name of the model that the query names, else of the default one; "" if there is none."""
    return parse_qs(request.query).get("model", [""])[-1] or services.registry.default_of(TextModel)
