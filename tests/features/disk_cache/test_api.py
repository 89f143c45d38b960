"""POST /reset_prefix_cache and /prefix_cache/... reach the engine of each model, or report what is wrong."""

from __future__ import annotations

import pytest

from lean_ovms.errors import BadRequest, NotSupported
from lean_ovms.models.lifecycle import LOADED, UNLOADED
from lean_ovms.types import Request
from tests.api.conftest import MakeApp, warnings_of, whole

PATH = "/reset_prefix_cache"
ON_DISK = [("/prefix_cache/save", 3), ("/v1/prefix_cache/restore", 9), ("/v3/prefix_cache/save", 3)]


@pytest.mark.parametrize(
    ("query", "disk"),
    [("", False), ("reset_external=true", True), ("reset_external=0", False), ("reset_running_requests=1", False)],
)
async def test_every_model_forgets(query: str, disk: bool, make_app: MakeApp) -> None:
    app, engine = await make_app()
    for path in (PATH, "/prefix_cache/reset"):
        assert (await app.handle(Request("POST", path, query))).status == 200
    assert engine.resets == [disk, disk]


async def test_what_is_wrong_is_said(make_app: MakeApp) -> None:
    app, engine = await make_app()
    response = await app.handle(Request("POST", PATH, "reset_external=maybe"))
    assert response.status == 400
    assert (await whole(response))["error"]["param"] == "reset_external"
    engine.refusal = BadRequest("only the pipeline PAGED can reset its prefix cache")
    response = await app.handle(Request("POST", PATH))
    assert (response.status, engine.resets) == (400, [])


@pytest.mark.parametrize(
    ("options", "query", "loaded", "warning"),
    [
        ({}, "", True, None),
        ({"prefix_cache_path": "x"}, "", True, "the blocks of m in --prefix_cache_path are kept: reset_external=true"),
        ({"prefix_cache_path": "x"}, "reset_external=true", True, None),
        ({"prefix_cache_path": "x"}, "reset_external=true", False, "are kept: the model is not loaded"),
    ],
)
async def test_blocks_that_stay_on_disk_are_told(
    options: dict[str, str], query: str, loaded: bool, warning: str | None, make_app: MakeApp
) -> None:
    app, _ = await make_app(**options)
    app.registry.get("m").phase = LOADED if loaded else UNLOADED
    response = await app.handle(Request("POST", PATH, query))
    assert response.status == 200
    assert (warning is None) is not any(warning or "" in value for value in warnings_of(response))


@pytest.mark.parametrize(("path", "blocks"), ON_DISK)
async def test_the_blocks_on_disk_are_counted(path: str, blocks: int, make_app: MakeApp) -> None:
    app, _ = await make_app(prefix_cache_path="x")
    response = await app.handle(Request("POST", path))
    assert response.status == 200
    assert (await whole(response))["data"] == [{"model": "m", "blocks": blocks, "bytes": 1000}]


@pytest.mark.parametrize("path", [path for path, _ in ON_DISK])
async def test_without_a_tier_on_disk_it_is_not_supported(path: str, make_app: MakeApp) -> None:
    app, _ = await make_app()
    response = await app.handle(Request("POST", path))
    assert (response.status, "--prefix_cache_path" in str(await whole(response))) == (501, True)
    app, engine = await make_app(prefix_cache_path="x")
    engine.refusal = NotSupported("needs the pipeline PAGED")
    assert (await app.handle(Request("POST", path))).status == 501


async def test_blocks_that_cannot_be_written_are_an_error(make_app: MakeApp) -> None:
    app, engine = await make_app(prefix_cache_path="x")
    engine.failed_blocks = 2
    response = await app.handle(Request("POST", "/prefix_cache/save"))
    assert response.status == 500
    assert (await whole(response))["error"]["message"].startswith("2 blocks of ")
