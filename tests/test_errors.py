"""Errors as responses, and their way through the engine's pipe."""

from __future__ import annotations

import json
from collections.abc import Iterator
from importlib import metadata

import pytest

from lean_ovms import errors


def test_an_error_response_has_the_status_openais_error_object_and_the_errors_headers_first() -> None:
    error = errors.Unavailable("The model is loading.", retry_after_s=7)

    response = errors.error_response(error, [("Access-Control-Allow-Origin", "*")])

    assert response.status == 503
    assert response.headers == [
        ("Content-Type", "application/json"),
        ("Retry-After", "7"),
        ("Access-Control-Allow-Origin", "*"),
    ]
    assert isinstance(response.body, bytes)
    assert json.loads(response.body) == {
        "error": {
            "message": "The model is loading.",
            "type": "server_error",
            "param": None,
            "code": "model_unavailable",
        }
    }


def test_status_and_retry_of_one_error_leave_its_class_alone() -> None:
    assert errors.BadRequest("x", status=501).status == 501
    assert errors.Unavailable("x", retry_after_s=60).retry_after_s == 60
    assert (errors.BadRequest("y").status, errors.Unavailable("y").retry_after_s) == (400, 2)


@pytest.mark.parametrize(
    "error",
    [
        errors.BadRequest("m", param="p", code="c"),
        errors.TooManyRequests("m"),
        errors.TooManyRequests("m", retry_after_s=9),
        errors.EngineFailure("m"),
        errors.BadRequest("m", status=501),
    ],
)
def test_the_front_end_gets_the_error_that_the_engine_sent(error: errors.RequestError) -> None:
    again = errors.from_wire(json.loads(json.dumps(error.to_wire())))

    assert type(again) is type(error)
    assert (again.body(), again.headers(), again.status) == (error.body(), error.headers(), error.status)


def test_every_kind_of_error_keeps_its_status_on_its_way_from_the_engine() -> None:
    classes = [c for c in vars(errors).values() if isinstance(c, type) and issubclass(c, errors.RequestError)]
    plain = [c for c in classes if "__init__" not in vars(c)]
    assert len(plain) > 15

    for kind in plain:
        again = errors.from_wire(kind("m").to_wire())
        assert (again.status, again.code) == (kind.status, kind.code)


def test_the_reasons_for_which_parts_of_a_grammar_are_refused_reach_the_front_end_and_no_client() -> None:
    error = errors.GrammarInvalid("m", param="p")
    error.reasons = {"2": "why"}

    again = errors.from_wire(json.loads(json.dumps(error.to_wire())))

    assert isinstance(again, errors.GrammarInvalid)
    assert again.reasons == {"2": "why"}
    assert again.body() == errors.GrammarInvalid("m", param="p").body()
    assert errors.GrammarInvalid("m").reasons == {}


def test_an_error_of_an_unknown_class_is_an_engine_failure() -> None:
    assert isinstance(errors.from_wire(["Surprise", None, None, None]), errors.EngineFailure)


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Returns the requirements in this package's metadata, which the test fills."""
    rows: list[str] = []
    monkeypatch.setattr(metadata, "requires", lambda name: rows)
    errors.install_command.cache_clear()
    yield rows
    errors.install_command.cache_clear()


def test_the_way_to_install_an_extra_needs_no_source_folder(installed: list[str]) -> None:
    installed += ["h11>=0.16", 'soundfile>=0.13; extra == "audio"', "soxr>=0.5; extra == 'audio'",
                  'pg[binary]; extra == "postgres"']  # fmt: skip
    assert errors.install_command("audio") == 'pip install "soundfile>=0.13" "soxr>=0.5"'
    assert errors.install_command("postgres") == 'pip install "pg[binary]"'


def test_the_way_to_install_an_extra_where_only_the_source_is_there(
    monkeypatch: pytest.MonkeyPatch, installed: list[str]
) -> None:
    def none(name: str) -> list[str]:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "requires", none)
    assert errors.install_command("audio") == 'pip install ".[audio]" in the source folder of lean_ovms'
