"""Errors have the form that the client of a request reads."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from lean_ovms.composition import OPENAI_ONLY, ErrorForms
from lean_ovms.errors import RequestError, Unavailable, with_param
from lean_ovms.manifest import ErrorForm
from lean_ovms.types import Request

FORM = ErrorForm(
    name="Other",
    body="test_error_forms:shown",
    schema="test_error_forms:SCHEMA",
    paths=("/other/",),
    header="other-version",
    statuses={503: 529},
    package="tests",
)
FORMS = ErrorForms([FORM])


def shown(error: RequestError, request_id: str) -> dict[str, Any]:
    """Returns an error in another form."""
    return {"text": error.message, "id": request_id}


@pytest.mark.parametrize(
    ("path", "headers", "other"),
    [
        ("/other", {}, True),
        ("/other/path", {}, True),
        ("/others", {}, False),
        ("/v1/models", {"other-version": "1"}, True),
        ("/v1/models", {}, False),
        ("/v1/other", {}, False),
    ],
)
def test_the_path_or_a_header_decides(path: str, headers: dict[str, str], other: bool) -> None:
    error = Unavailable("lat\u00e9r")
    response = FORMS.response(error, [("X", "y")], request=Request("GET", path, headers=headers), request_id="r")
    assert response.headers == [("Content-Type", "application/json"), ("Retry-After", "2"), ("X", "y")]
    assert isinstance(response.body, bytes)
    body = orjson.loads(response.body)
    assert (response.status, body) == ((529, {"text": "lat\u00e9r", "id": "r"}) if other else (503, error.body()))


def test_other_statuses_stay_and_a_request_that_could_not_be_read_gets_openais_form() -> None:
    assert FORMS.response(RequestError("no"), request=Request("GET", "/other")).status == 400
    for forms, request in ((FORMS, None), (OPENAI_ONLY, Request("GET", "/other"))):
        response = forms.response(Unavailable("later"), request=request)
        assert (response.status, response.body) == (503, Unavailable("later").to_bytes())


def test_the_message_begins_with_the_parameter_that_it_does_not_name() -> None:
    assert with_param(RequestError("it is wrong", param="tools")) == "tools: it is wrong"
    assert with_param(RequestError("tools is wrong", param="tools")) == "tools is wrong"
