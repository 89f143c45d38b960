"""A module of endpoints is imported by its first request, and every row of the table has its handler."""

from __future__ import annotations

import inspect
import logging

import pytest

from lean_ovms.api import fields, router
from lean_ovms.api.router import Route
from lean_ovms.composition import compose
from lean_ovms.config import Config, listed
from lean_ovms.errors import Unavailable
from lean_ovms.manifest import named
from tests.api.conftest import MakeApp, get

BROKEN = Route("GET", "/broken", "no_such_module:handle", auth="open", package="lean_ovms.api")


def test_every_row_names_a_handler_with_a_description() -> None:
    for route in compose().routes:
        assert inspect.iscoroutinefunction(router.imported(route)), route
        assert route.variant or router.imported(route) in fields._docs, route
        assert route.auth in ("key", "admin", "models", "metrics", "open"), route


def test_every_handler_with_a_description_has_a_row() -> None:
    handlers = {router.imported(route) for route in compose().routes}
    assert {handler.__qualname__ for handler in fields._docs.keys() - handlers} == set()


def test_features_name_what_they_do_at_the_start() -> None:
    rows = {(row.package, row.prepare, row.options) for row in compose().start_rows}
    assert ("lean_ovms.features.batches", "api.batches:prepare", ("files_path",)) in rows
    for package, prepare, options in rows:
        assert inspect.iscoroutinefunction(named(package, prepare))
        assert set(options) <= {row.name for row in listed()}


async def test_the_first_request_imports_its_module(make_app: MakeApp, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(router, "_handlers", {})
    app, _ = await make_app()
    assert (await get(app, "/nowhere")).status == 404
    assert (await get(app, "/v1/chat/completions")).status == 405
    assert router._handlers == {}
    assert (await get(app, "/health")).status == 200
    assert (await get(app, "/v1/models")).status == 200
    assert [name for _, name in router._handlers] == ["health:handle_health", "api:handle_list"]


async def test_what_cannot_be_imported_fails_alone(
    make_app: MakeApp, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    table = (*router.every(), BROKEN)
    monkeypatch.setattr(router, "every", lambda _: table)
    app, _ = await make_app()
    with caplog.at_level(logging.ERROR):
        response = await get(app, "/broken")
    assert response.status == 500
    assert b"no_such_module" not in bytes(response.body)  # type: ignore[arg-type]
    assert "no_such_module" in caplog.text
    assert (await get(app, "/health")).status == 200


async def test_the_endpoints_of_the_models_are_imported_before_they_are_called(
    make_app: MakeApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(router, "_handlers", {})
    app, _ = await make_app()
    await app.preload()
    assert [name for _, name in router._handlers] == ["api:handle"]


class State:
    """A service."""

    def __init__(self, config: Config) -> None:
        self.closed = False

    async def drain(self, timeout_s: float) -> None:
        pass

    async def close(self) -> None:
        self.closed = True


class Other(State):
    """Another service."""


async def test_a_service_is_made_once_and_closed_and_none_is_made_by_a_server_that_stops(make_app: MakeApp) -> None:
    app, _ = await make_app()
    state = app.services.get(State)
    assert app.services.get(State) is state
    await app.drain(0)
    assert app.services.get(State) is state
    with pytest.raises(Unavailable):
        app.services.get(Other)
    await app.close()
    assert state.closed
