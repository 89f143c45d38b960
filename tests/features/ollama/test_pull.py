"""/api/pull and /api/delete, with a hub on localhost, a repository, and a manager that serves its models with fake
engines."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest

from lean_ovms.api.app import App
from lean_ovms.config import Config
from lean_ovms.features.deployment.manager import DeploymentManager
from lean_ovms.features.hub import runtime
from lean_ovms.features.hub.pull import PullRequest, pull
from lean_ovms.models.text_model import TextModel
from lean_ovms.server.run import close
from lean_ovms.types import Request, Response
from tests.api.conftest import get, parts, post, whole
from tests.fakes import FakeEngine, say
from tests.features.hub.conftest import fast_library, model_files, server, tree
from tests.features.hub.hub_server import Fault, HubServer
from tests.features.ollama.test_chat import error, lines

__all__ = ["fast_library", "server"]
pytestmark = pytest.mark.slow
NAME = "org/model"


@pytest.fixture
async def app(server: HubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[App]:
    """Returns a server of an empty repository, whose clients may pull."""
    monkeypatch.setenv("HF_ENDPOINT", server.url)
    monkeypatch.setenv("GIT_LFS_RESUME_ATTEMPTS", "0")
    config = Config(model_repository_path=str(tmp_path), allow_runtime_pull=True, access_log=False)
    app = App(config)
    app.services.manager = DeploymentManager(
        config,
        app.registry,
        make=lambda config: TextModel(config, lambda: FakeEngine(lambda *_: say("x"))),  # type: ignore[arg-type,return-value]
    )
    await app.services.manager.load()
    yield app
    await close(app)


async def delete(app: App, body: Any) -> Response:
    return await app.handle(Request("DELETE", "/api/delete", body=orjson.dumps(body)))


async def test_a_model_is_pulled_served_and_deleted(app: App, tmp_path: Path) -> None:
    assert (await whole(await get(app, "/api/tags")))["models"] == []
    told = await lines(await post(app, "/api/pull", {"model": f"hf.co/{NAME}:latest"}))
    assert told[0] == {"status": "pulling manifest"}
    assert [one["status"] for one in told[-3:]] == ["verifying sha256 digest", "writing manifest", "success"]
    size = len(model_files()["openvino_model.bin"])
    weights = [one for one in told if one.get("total") == size]
    assert [one["completed"] for one in weights] == sorted(one["completed"] for one in weights)
    assert (weights[0]["completed"], weights[-1]["completed"]) == (0, size)
    assert len(weights) > 3
    digest = weights[0]["digest"]
    assert digest.startswith("sha256:")
    assert {one["status"] for one in weights} == {f"pulling {digest[7:19]}"}
    assert "pulling config.json" in [one["status"] for one in told]
    [listed] = (await whole(await get(app, "/api/tags")))["models"]
    assert listed["name"] == f"{NAME}:latest"
    assert listed["size"] == size + 2000
    body = {"model": NAME, "prompt": "hi", "raw": True, "stream": False}
    assert (await whole(await post(app, "/api/generate", body)))["response"] == "x"
    assert [one["status"] for one in await lines(await post(app, "/api/pull", {"name": NAME}))][-1] == "success"
    response = await delete(app, {"model": f"{NAME}:latest"})
    assert (response.status, response.body) == (200, b"")
    assert (await whole(await get(app, "/api/tags")))["models"] == []
    assert list(tmp_path.iterdir()) == []
    assert await error(await delete(app, {"model": NAME})) == (404, f"model '{NAME}' not found; served models: none")


async def test_without_a_stream(app: App, server: HubServer) -> None:
    body = await whole(await post(app, "/api/pull", {"model": NAME, "stream": False}))
    assert body == {"status": "success"}
    status, message = await error(await post(app, "/api/pull", {"model": "org/none", "stream": False}))
    assert (status, message) == (
        500,
        f"there is no model org/none at {server.url}, or it is private and HF_TOKEN does not open it",
    )


async def test_errors_are_in_the_stream_and_have_no_path(app: App, server: HubServer, tmp_path: Path) -> None:
    for name in ("org/none", "../etc", "a/b/c", "llama3.2:1b"):
        told = await lines(await post(app, "/api/pull", {"model": name}))
        assert list(told[-1]) == ["error"]
        assert str(tmp_path) not in told[-1]["error"]
    del server.repos[NAME].files["openvino_model.xml"]
    server.repos[NAME].files["x.safetensors"] = b"s"
    told = await lines(await post(app, "/api/pull", {"model": NAME}))
    assert "a PyTorch checkpoint" in told[-1]["error"]
    assert tree(tmp_path) == {}


@pytest.fixture
def go_on(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Stops downloads in the middle of the weights until this is set."""
    event = threading.Event()

    def gated(request: PullRequest, open_hub: Any) -> bool:
        def progress(path: str, digest: str, size: int, there: int) -> None:
            request.progress(path, digest, size, there)
            if there > 50_000:
                event.wait()

        return pull(replace(request, progress=progress), open_hub)

    monkeypatch.setattr(runtime, "pull", gated)
    yield event
    event.set()


async def begun(response: Response) -> AsyncIterator[bytes]:
    """Waits until a stream reports weights, and returns the rest of it."""
    told = parts(response)
    async for part in told:
        if b'"total":512000' in part:
            return told
    raise AssertionError("the stream has ended")


async def test_a_client_that_leaves_ends_its_pull_and_the_next_goes_on(
    app: App, server: HubServer, go_on: threading.Event
) -> None:
    told = await begun(await post(app, "/api/pull", {"model": NAME}))
    await told.aclose()  # type: ignore[attr-defined]
    go_on.set()
    assert (await lines(await post(app, "/api/pull", {"model": NAME})))[-1] == {"status": "success"}
    assert [start > 0 for start in server.starts("openvino_model.bin")] == [False, True]


async def test_what_was_received_before_an_error_is_kept(app: App, server: HubServer) -> None:
    server.repos[NAME].faults["openvino_model.bin"] = [Fault(cut=300_000), Fault(status=403)]
    told = await lines(await post(app, "/api/pull", {"model": NAME}))
    assert "refused access to org/model (403)" in told[-1]["error"]
    assert (await lines(await post(app, "/api/pull", {"model": NAME})))[-1] == {"status": "success"}
    assert [start > 0 for start in server.starts("openvino_model.bin")][-1]


@pytest.mark.parametrize(
    "options", [{"allow_runtime_pull": False}, {"model_path": "m"}, {"config_path": "c"}, {"model_repository_path": ""}]
)
async def test_only_servers_of_a_repository_allow_it(tmp_path: Path, options: Any) -> None:
    config = Config(**{"allow_runtime_pull": True, "model_repository_path": str(tmp_path), **options})
    model = TextModel(Config(fake_engine=True, model_name="m"), FakeEngine([]))  # type: ignore[arg-type]
    app = App(config, [model])
    await model.load()
    for response in (await post(app, "/api/pull", {"model": NAME}), await delete(app, {"model": "m"})):
        status, message = await error(response)
        assert (status, "--allow_runtime_pull" in message) == (403, True)
    await close(app)


async def test_a_stopped_server_ends_its_pulls(app: App, go_on: threading.Event) -> None:
    told = await begun(await post(app, "/api/pull", {"model": NAME}))
    await app.close()
    go_on.set()
    *_, last = [part async for part in told]
    assert "the pull was stopped" in orjson.loads(last)["error"]
    assert await lines(await post(app, "/api/pull", {"model": NAME})) == [
        {"status": "pulling manifest"},
        {"error": "the server is shutting down"},
    ]


async def test_another_model_that_cannot_be_served_fails_neither_a_pull_nor_a_deletion(
    app: App, tmp_path: Path
) -> None:
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "graph.pbtxt").write_text("not a graph {")
    assert (await lines(await post(app, "/api/pull", {"model": NAME})))[-1] == {"status": "success"}
    assert (await delete(app, {"model": NAME})).status == 200
    assert [path.name for path in tmp_path.iterdir()] == ["broken"]


async def test_the_files_of_a_model_are_deleted_although_the_client_leaves(
    app: App, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert (await lines(await post(app, "/api/pull", {"model": NAME})))[-1] == {"status": "success"}
    reloading, go_on = asyncio.Event(), asyncio.Event()
    manager = app.services.manager
    assert manager is not None
    reload = manager.reload

    async def slow() -> bool:
        reloading.set()
        await go_on.wait()
        return await reload()

    monkeypatch.setattr(manager, "reload", slow)
    deleting = asyncio.ensure_future(delete(app, {"model": NAME}))
    await reloading.wait()
    deleting.cancel()
    await asyncio.wait([deleting])
    go_on.set()
    await app.close()
    assert list(tmp_path.iterdir()) == []
