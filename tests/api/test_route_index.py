"""A module of endpoints is imported by its first request; the index of routes says what all modules say."""

from __future__ import annotations

import logging

import pytest

from lean_ovms.api import route_index, router
from lean_ovms.api.route_index import Entry, Module
from lean_ovms.config import Config
from lean_ovms.errors import Unavailable
from tests.api.conftest import MakeApp, get

BROKEN = Entry("GET", "/broken", "open", vital=False, changes=False, header="", module=Module("no_such_module"))


def test_the_index_has_every_route() -> None:
    assert route_index.FILE.read_text("utf-8") == route_index.render(), "run: python -m tools.tables"


def test_the_index_says_of_a_route_what_the_module_says() -> None:
    told = [(e.method, e.path, e.auth, e.vital, e.header) for e in route_index.read()]
    assert told == [(r.method, r.path, r.auth, r.vital, r.header) for r in router.collect()]


def test_a_module_may_be_needed_early() -> None:
    early = [module for module in route_index.modules(route_index.read()) if module.model or module.option]
    assert Module("openai.chat", model="TextModel") in early
    assert Module("openai.responses.create", option="response_store") in early
    for module in early:
        assert module.option == "" or module.option in Config.__dataclass_fields__


async def test_the_first_request_imports_its_module(make_app: MakeApp, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(route_index, "_imported", {})
    app, _ = await make_app()
    assert (await get(app, "/nowhere")).status == 404
    assert (await get(app, "/v1/chat/completions")).status == 405
    assert route_index._imported == {}
    assert (await get(app, "/health")).status == 200
    assert (await get(app, "/v1/models")).status == 200
    assert [*route_index._imported] == ["admin.health", "openai.models"]


async def test_what_cannot_be_imported_fails_alone(
    make_app: MakeApp, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    entries = [*route_index.read(), BROKEN]
    monkeypatch.setattr(route_index, "read", lambda: entries)
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
    monkeypatch.setattr(route_index, "_imported", {})
    app, _ = await make_app()
    await app.preload()
    assert [*route_index._imported] == ["openai.chat"]


class State:
    """A service."""

    def __init__(self, config: Config) -> None:
        self.closed = False

    async def drain(self, timeout_s: float) -> None:
        pass

    async def close(self) -> None:
        self.closed = True


class Other(State):
    """Another one."""


async def test_a_service_is_made_once_and_closed_and_none_is_made_by_a_server_that_stops(make_app: MakeApp) -> None:
    app, _ = await make_app()
    state = app.service(State)
    assert app.service(State) is state
    await app.drain(0)
    assert app.service(State) is state
    with pytest.raises(Unavailable):
        app.service(Other)
    await app.close()
    assert state.closed
