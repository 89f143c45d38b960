"""Anthropic's form of errors, and the requests whose errors have it."""

from __future__ import annotations

import orjson
import pytest

from lean_ovms.composition import compose
from lean_ovms.errors import RequestError, Unavailable, prompt_too_long, too_many_characters
from lean_ovms.features.anthropic.errors import anthropic_error
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


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (prompt_too_long(40030, 32768), "40030 tokens > 32768 maximum"),
        (prompt_too_long(40, 40), "40 tokens > 40 maximum"),
        (too_many_characters(2000, 40), too_many_characters(2000, 40).message),
    ],
)
def test_a_prompt_that_is_too_long_is_told_in_anthropics_words(error: RequestError, text: str) -> None:
    """Claude Code reads both numbers, and shortens its conversation by their difference; LangChain reads the words."""
    shown = anthropic_error(error)["error"]
    assert shown["message"] == f"prompt is too long: {text}"
    assert shown["details"] == {"error_code": "context_length_exceeded"}
