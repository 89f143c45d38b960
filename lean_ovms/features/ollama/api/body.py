"""The body of a request of Ollama's API."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from ....api.services import Services
from ....types import Json, Request

T = TypeVar("T")
FORM = "application/x-www-form-urlencoded"
"""The media type that `curl -d` sends."""


async def parse_body(request: Request, services: Services, parse: Callable[[Json, Services], T]) -> T:
    """Parses the JSON body of a request like `Services.parse_body`, even if it is sent as a form. Raises RequestError.

    Ollama ignores the media type, and its documentation shows curl without one.
    """
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() == FORM:
        request.headers = {**request.headers, "content-type": "application/json"}
    return await services.parse_body(request, parse)
