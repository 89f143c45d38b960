"""OVMS's GET /v1/config and POST /v1/config/reload, with an error status for failures."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from lean_ovms.api.app import App
from lean_ovms.config import Config
from lean_ovms.errors import StartError
from lean_ovms.models.text_model import TextModel
from lean_ovms.types.engine import ModelInfo
from tests.api.conftest import MakeApp, get, post, whole
from tests.fakes import FakeEngine


def status(state: str, code: str = "OK", message: str = "OK") -> Any:
    return {
        "model_version_status": [
            {"version": "1", "state": state, "status": {"error_code": code, "error_message": message}}
        ]
    }


async def reload_(app: App) -> Any:
    response = await post(app, "/v1/config/reload", b"")
    return response.status, await whole(response)


async def test_the_state_of_each_model_that_is_or_was_served(make_app: MakeApp) -> None:
    app, engine = await make_app()
    app.registry.unloaded = {"gone": "END", "going": "UNLOADING"}
    for state, shown in (("ready", "AVAILABLE"), ("loading", "LOADING"), ("restarting", "LOADING")):
        engine.state = state
        response = await get(app, "/v1/config")
        assert response.status == 200
        assert await whole(response) == {"m": status(shown), "gone": status("END"), "going": status("UNLOADING")}


async def test_a_model_that_did_not_load_says_why_without_paths() -> None:
    class Broken(FakeEngine):
        async def start(self) -> ModelInfo:
            raise StartError("no model at /srv/m", reason="Its files are missing.")

    config = Config(fake_engine=True, model_name="m", access_log=False)
    model = TextModel(config, Broken([]))  # type: ignore[arg-type]
    app = App(config, [model])
    with pytest.raises(StartError):
        await model.load()
    told = "The model could not be loaded. Its files are missing."
    assert await whole(await get(app, "/v1/config")) == {"m": status("LOADING", "FAILED_PRECONDITION", told)}
    refused = await post(app, "/v1/completions", {"model": "m", "prompt": "x"})
    assert refused.status == 503
    assert (await whole(refused))["error"] == {
        "message": told,
        "type": "server_error",
        "param": None,
        "code": "model_not_loaded",
    }
    assert (await whole(await get(app, "/v1/models")))["data"] == []
    assert (await whole(await get(app, "/health")))["error"]["message"] == "Server is not ready: m is failed"
    await app.close()


async def test_a_model_whose_change_failed_goes_on_and_says_so(make_app: MakeApp) -> None:
    app, _ = await make_app()
    app.registry.models["m"].failure = StartError("x", reason="Its graph is not valid.")
    told = "Its replacement could not be loaded. Its graph is not valid."
    assert await whole(await get(app, "/v1/config")) == {"m": status("AVAILABLE", "FAILED_PRECONDITION", told)}


class FakeManager:
    """A manager that can only reload."""

    def __init__(self, reload: Callable[[], Awaitable[bool]]) -> None:
        self.reload = reload

    async def stop(self) -> None:
        """Does nothing."""


async def test_a_reload_answers_with_the_state_after_it(make_app: MakeApp) -> None:
    app, _ = await make_app()
    called = []

    async def reload() -> bool:
        called.append(True)
        app.registry.unloaded = {"gone": "END"}
        return True

    app.services.manager = FakeManager(reload)  # type: ignore[assignment]
    assert await reload_(app) == (200, {"m": status("AVAILABLE"), "gone": status("END")})
    assert called == [True]


async def test_a_reload_that_fails_is_a_500_with_ovms_sentence_and_no_path(make_app: MakeApp) -> None:
    app, _ = await make_app()

    async def reload() -> bool:
        raise StartError("/srv/config.json is not valid JSON", reason="The configuration file is not valid.")

    app.services.manager = FakeManager(reload)  # type: ignore[assignment]
    code, body = await reload_(app)
    assert code == 500
    assert body["error"]["message"] == (
        "Reloading config file failed. Check server logs for more info. (The configuration file is not valid.)"
    )


async def test_a_reload_needs_the_key_and_changes_nothing_where_there_is_nothing_to_reload(make_app: MakeApp) -> None:
    app, _ = await make_app(api_key="k")
    assert (await reload_(app))[0] == 401
    assert (await get(app, "/v1/config")).status == 200
    response = await post(app, "/v1/config/reload", b"", authorization="Bearer k")
    assert (response.status, await whole(response)) == (200, {"m": status("AVAILABLE")})


async def test_a_model_that_cannot_be_loaded_does_not_take_the_others_out_of_service(make_app: MakeApp) -> None:
    app, engine = await make_app()
    other = TextModel(Config(fake_engine=True, model_name="n"), FakeEngine([]))  # type: ignore[arg-type]
    app.registry.install(other)
    assert (await get(app, "/health")).status == 503  # still loading
    other.failure = StartError("x")
    assert (await get(app, "/health")).status == 200
    engine.state = "restarting"
    assert (await get(app, "/health")).status == 503
    engine.state = "failed"
    assert (await get(app, "/health")).status == 503


async def test_one_model_may_be_asked_for_as_kserve_does(make_app: MakeApp) -> None:
    app, engine = await make_app()
    for path, status_code in [
        ("/v2/models/m/ready", 200),
        ("/v2/models/m/versions/1/ready", 200),
        ("/v2/models/m/ready/", 200),
        ("/v2/models/m/versions/1/ready/", 200),
        ("/v2/models/m/versions/1/2/ready", 404),
        ("/v2/models/m/versions/2/ready", 404),
        ("/v2/models/no/such/ready", 404),
    ]:
        assert (await get(app, path)).status == status_code
    engine.state = "restarting"
    assert (await get(app, "/v2/models/m/ready")).status == 503
    lost = TextModel(Config(fake_engine=True, model_name="n"), FakeEngine([]))  # type: ignore[arg-type]
    app.registry.install(lost)
    lost.failure = StartError("x", reason="Its files are missing.")
    response = await get(app, "/v2/models/n/ready")
    assert (response.status, (await whole(response))["error"]["code"]) == (503, "model_not_loaded")
