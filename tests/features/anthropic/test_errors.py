"""Anthropic's form of errors, and the requests whose errors have it."""

from __future__ import annotations

import orjson
import pytest

from lean_ovms.composition import compose
from lean_ovms.errors import Unavailable
from lean_ovms.types import Request


@pytest.mark.parametrize(
    ("path", "headers", "anthropics"),
    [
        ("/v1/messages", {}, True),
        ("/v3/messages/count_tokens", {}, True),
        ("/v3/v1/messages/batches", {}, True),
        ("/v1/models", {"anthropic-version": "2023-06-01"}, True),
        ("/v1/models", {}, False),
        ("/v1/chat/completions", {}, False),
    ],
)
def test_an_error_has_the_form_that_the_client_reads(path: str, headers: dict[str, str], anthropics: bool) -> None:
    request = Request("POST", path, headers=headers)
    response = compose().error_forms.response(Unavailable("later"), request=request, request_id="r")
    assert ("Retry-After", "2") in response.headers
    assert isinstance(response.body, bytes)
    body = orjson.loads(response.body)
    if anthropics:
        assert response.status == 529
        details = {"error_code": "model_unavailable"}
        error = {"type": "overloaded_error", "message": "later", "details": details}
        assert body == {"type": "error", "error": error, "request_id": "r"}
    else:
        assert response.status == 503
        assert set(body) == {"error"}
