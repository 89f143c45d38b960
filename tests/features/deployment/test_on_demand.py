"""Models that requests load, through the API, with scripted engines and without sockets."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from functools import partial
from typing import Any

import orjson
import pytest

from lean_ovms.api.app import App
from lean_ovms.config import Config
from lean_ovms.errors import StartError
from lean_ovms.features.deployment import model_cache as cache_module
from lean_ovms.features.deployment.desired import DesiredState, ModelSpec
from lean_ovms.features.deployment.manager import DeploymentManager
from lean_ovms.models.text_model import TextModel
from lean_ovms.observability.records import RequestRecord, current_record
from lean_ovms.server.run import close
from lean_ovms.types import OutputParams, Request, SamplingParams, TextPrompt
from lean_ovms.types.engine import ModelInfo
from tests.fakes import FakeEngine, say
from tests.streams import pieces
from tests.waiting import until

BASE = Config(fake_engine=True, config_path="config.json", access_log=False, metrics_enable=True)


class Engine(FakeEngine):
    """An engine that is ready when its gate is open. With a fault it does not load. Stopping it while it works fails
    the test."""

    def __init__(self, home: Home, name: str) -> None:
        super().__init__(lambda prompt, sampling: home.script)
        self.home = home
        self.name = name

    async def start(self) -> ModelInfo:
        assert self.state == "loading"
        self.home.running.append(self.name)
        self.home.most = max(self.home.most, len(set(self.home.running)))
        await asyncio.sleep(0)
        await self.home.gate.wait()
        if self.name in self.home.broken or self.state == "stopped":
            raise StartError("no such file /secret", reason="It is broken.")
        return await super().start()

    async def stop(self) -> None:
        if self.mail.busy:
            self.home.cut.append(self.name)
        if self.name in self.home.running:
            self.home.running.remove(self.name)
        await super().stop()


class Home:
    """An app whose models have scripted engines. `running` has those in memory, `cut` those that were stopped while
    working."""

    def __init__(self) -> None:
        self.script = say("a", "b")
        self.gate = asyncio.Event()
        self.gate.set()
        self.broken: set[str] = set()
        self.running: list[str] = []
        self.cut: list[str] = []
        self.most = 0
        self.specs: list[ModelSpec] = []
        self.max_loaded = 0
        self.app = App(BASE, [])
        self.manager: DeploymentManager | None = None

    def want(self, *names: str, groups: dict[str, str] | None = None, **options: Any) -> None:
        config = BASE.replace(config_path="", **options)
        groups = groups or {}
        self.specs = [
            ModelSpec(
                config=config.replace(model_name=name, group_name=groups.get(name, "")),
                on_demand=groups.get(name) != "permanent",
                permanent=groups.get(name) == "permanent",
            )
            for name in names
        ]

    async def open(self, *names: str, **options: Any) -> None:
        """Sets the models to serve, and loads those that are not on demand."""
        self.want(*names, **options)
        read = lambda _: DesiredState(models=tuple(self.specs), max_loaded=self.max_loaded)  # noqa: E731
        self.manager = DeploymentManager(BASE, self.app.registry, read=read, make=self._make)
        self.app.services.manager = self.manager
        await self.app.open()
        await self.manager.load()

    def _make(self, config: Config) -> TextModel:
        return TextModel(config, lambda: Engine(self, config.model_name))  # type: ignore[arg-type,return-value]

    async def close(self) -> None:
        await close(self.app)

    async def ask(self, method: str, path: str, body: Any = None) -> tuple[int, Any, dict[str, str]]:
        """Returns status, JSON and headers of a response."""
        plain, _, query = path.partition("?")
        data = b"" if body is None else orjson.dumps(body)
        request = Request(method, plain, query, {"content-type": "application/json"}, data, "test")
        response = await self.app.handle(request)
        try:
            if not isinstance(response.body, bytes):
                return response.status, b"".join([part async for part in pieces(response.body)]), dict(response.headers)
            text = response.body
            found = orjson.loads(text) if text[:1] in (b"{", b"[") else text
            return response.status, found, dict(response.headers)
        finally:
            await response.aclose()

    async def chat(self, model: str, **fields: Any) -> tuple[int, Any, dict[str, str]]:
        messages = [{"role": "user", "content": "hi"}]
        return await self.ask("POST", "/v1/chat/completions", {"model": model, "messages": messages, **fields})

    async def statuses(self) -> dict[str, str]:
        _, body, _ = await self.ask("GET", "/v1/models")
        return {one["id"]: one["status"]["value"] for one in body["data"]}


@pytest.fixture
async def home(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Home]:
    monkeypatch.setattr(cache_module, "LINGER_S", 0.0)
    made = Home()
    yield made
    await made.close()


async def test_all_are_listed_and_ready_and_the_first_request_loads(home: Home) -> None:
    await home.open("a", "b")
    assert await home.statuses() == {"a": "unloaded", "b": "unloaded"}
    assert (await home.ask("GET", "/v2/health/ready"))[0] == 200
    assert (await home.ask("GET", "/v2/models/a/ready"))[0] == 200
    _, states, _ = await home.ask("GET", "/v1/config")
    [state] = states["a"]["model_version_status"]
    assert (state["state"], "Not in memory" in state["status"]["error_message"]) == ("AVAILABLE", True)
    status, body, _ = await home.chat("a")
    assert (status, body["choices"][0]["message"]["content"]) == (200, "ab")
    assert await home.statuses() == {"a": "loaded", "b": "unloaded"}
    assert home.running == ["a"]


async def test_requests_wait_for_a_model_that_a_reload_adds_and_loads_at_once(home: Home) -> None:
    groups = dict.fromkeys(("a", "b", "c"), "permanent")
    await home.open("a", groups=groups)
    home.want("a", "b", "c", groups=groups, max_queued_requests=1)
    home.gate.clear()
    home.broken.add("c")
    assert home.manager is not None
    reloading = asyncio.create_task(home.manager.reload())
    await until(lambda: "b" in home.running)
    asked = [asyncio.create_task(home.chat(name)) for name in ("b", "c")]
    await until(lambda: all(home.app.registry.models[name].waiting for name in ("b", "c")))
    assert (await home.ask("GET", "/v2/models/b/ready"))[0] != 200
    status, body, headers = await home.chat("b")
    assert (status, body["error"]["message"]) == (429, "1 request is already waiting for this model to be loaded")
    assert "Retry-After" in headers
    home.gate.set()
    (status, body, _), (refused, error, headers) = await asyncio.gather(*asked)
    assert (status, body["choices"][0]["message"]["content"]) == (200, "ab")
    assert (refused, error["error"]["code"], "Retry-After" in headers) == (503, "model_not_loaded", True)
    with pytest.raises(StartError):
        await reloading
    assert (await home.chat("c"))[0] == 503


async def test_what_a_request_may_ask_for_is_checked_against_the_loaded_model(home: Home) -> None:
    await home.open("a")
    status, body, _ = await home.chat("a", max_tokens=0)
    assert (status, body["error"]["param"], home.running) == (400, "max_tokens", ["a"])
    status, body, _ = await home.chat("nobody")
    assert (status, body["error"]["code"]) == (404, "model_not_found")


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", "/v1/completions", {"model": "a", "prompt": ["x", "y"]}),
        ("POST", "/v1/responses", {"model": "a", "input": "x"}),
        ("POST", "/v1/messages", {"model": "a", "max_tokens": 5, "messages": [{"role": "user", "content": "x"}]}),
        ("POST", "/tokenize", {"prompt": "x"}),
        ("POST", "/v3/tokenize", {"model": "a", "text": "x"}),
        ("POST", "/detokenize", {"tokens": [65]}),
        ("GET", "/tokenizer_info", None),
        ("POST", "/v1/responses/input_tokens", {"model": "a", "input": "x"}),
    ],
)
async def test_every_endpoint_loads_the_model_that_it_needs(home: Home, method: str, path: str, body: Any) -> None:
    await home.open("a")
    status, answer, _ = await home.ask(method, path, body)
    assert (status, home.running) == (200, ["a"]), answer
    await home.ask("POST", "/sleep")
    await home.ask("POST", "/wake_up")
    status, answer, _ = await home.ask(method, path, body)
    assert (status, home.running) == (200, ["a"]), answer


async def test_one_is_unloaded_for_another_and_loaded_again(home: Home) -> None:
    home.max_loaded = 1
    await home.open("a", "b")
    for name in ("a", "b", "a"):
        assert (await home.chat(name))[0] == 200
        assert home.running == [name]
    assert (home.most, home.cut) == (1, [])
    _, metrics, _ = await home.ask("GET", "/metrics")
    lines = metrics.decode().splitlines()
    assert 'ovms_graph_loaded{name="a"} 1' in lines
    assert 'ovms_graph_loaded{name="b"} 0' in lines
    assert 'lean_ovms_engine_up{model_name="b"} 1' in lines
    assert 'lean_ovms_model_load_seconds_count{model_name="a"} 2' in lines
    assert 'lean_ovms_model_unloads_total{model_name="a"} 1' in lines
    assert 'lean_ovms_model_waiting_requests{model_name="a"} 0' in lines


async def test_a_stream_is_read_to_its_end_before_its_model_goes(home: Home) -> None:
    home.max_loaded = 1
    await home.open("a", "b")
    messages = [{"role": "user", "content": "hi"}]
    data = orjson.dumps({"model": "a", "messages": messages, "stream": True})
    request = Request("POST", "/v1/chat/completions", "", {"content-type": "application/json"}, data, "test")
    response = await home.app.handle(request)
    other = asyncio.create_task(home.chat("b"))
    await asyncio.sleep(0.02)
    assert (home.running, other.done()) == (["a"], False)
    assert not isinstance(response.body, bytes)
    assert b"[DONE]" in b"".join([part async for part in pieces(response.body)])
    await response.aclose()
    assert (await other)[0] == 200
    assert (home.running, home.cut) == (["b"], [])


async def test_a_model_that_does_not_load_is_said_so_and_leaves_the_others(home: Home) -> None:
    home.broken = {"b"}
    await home.open("a", "b")
    await home.chat("a")
    status, body, headers = await home.chat("b")
    assert (status, body["error"]["code"], "Retry-After" in headers) == (503, "model_not_loaded", True)
    assert "/secret" not in body["error"]["message"]
    assert await home.statuses() == {"a": "loaded", "b": "failed"}
    assert (await home.ask("GET", "/v2/models/b/ready"))[0] == 503
    assert (await home.ask("GET", "/v2/health/ready"))[0] == 200
    _, states, _ = await home.ask("GET", "/v1/config")
    assert states["b"]["model_version_status"][0]["status"]["error_code"] == "FAILED_PRECONDITION"
    assert (await home.chat("a"))[0] == 200


async def test_the_state_while_it_loads(home: Home) -> None:
    await home.open("a")
    home.gate.clear()
    asked = asyncio.create_task(home.chat("a"))
    while await home.statuses() == {"a": "unloaded"}:
        await asyncio.sleep(0.001)
    assert await home.statuses() == {"a": "loading"}
    _, states, _ = await home.ask("GET", "/v1/config")
    assert states["a"]["model_version_status"][0]["state"] == "LOADING"
    assert (await home.ask("GET", "/v2/models/a/ready"))[0] == 200  # it will be served after a while
    home.gate.set()
    assert (await asked)[0] == 200


async def test_sleep_and_wake_up(home: Home) -> None:
    await home.open("a", "p", groups={"p": "permanent"})
    await home.chat("a")
    assert (await home.ask("GET", "/is_sleeping"))[1] == {"is_sleeping": False}
    assert (await home.ask("POST", "/sleep?level=1"))[:2] == (200, {"status": "sleeping", "level": 1})
    assert (await home.ask("GET", "/is_sleeping"))[1] == {"is_sleeping": True}
    assert home.running == []
    status, body, headers = await home.chat("a")
    assert (status, body["error"]["code"], "Retry-After" in headers) == (503, "sleeping", True)
    assert (await home.ask("GET", "/health"))[0] == 503
    assert (await home.ask("GET", "/ping"))[0] == 200
    assert await home.statuses() == {"a": "sleeping", "p": "sleeping"}
    woken = await home.ask("POST", "/wake_up?tags=weights&tags=kv_cache")
    assert woken[:2] == (200, {"status": "awake", "tags": None})
    assert sorted(home.running) == ["a", "p"]
    assert (await home.chat("p"))[0] == 200


async def test_the_server_is_not_ready_while_it_sleeps_with_its_models_in_memory(home: Home) -> None:
    await home.open("a", "p", groups={"p": "permanent"})
    await home.chat("a")
    assert (await home.ask("POST", "/sleep?level=0"))[0] == 200
    assert sorted(home.running) == ["a", "p"]
    assert (await home.chat("a"))[0] == 503
    for path in ("/health", "/v2/health/ready", "/v2/models/a/ready", "/v2/models/p/ready"):
        assert (await home.ask("GET", path))[0] == 503, path
    for path in ("/ping", "/v2/health/live"):
        assert (await home.ask("GET", path))[0] == 200, path
    assert await home.statuses() == {"a": "sleeping", "p": "sleeping"}
    assert (await home.ask("POST", "/wake_up"))[0] == 200
    assert (await home.ask("GET", "/health"))[0] == 200
    assert await home.statuses() == {"a": "loaded", "p": "loaded"}


async def test_a_pause_keeps_the_models_in_memory(home: Home) -> None:
    await home.open("a")
    await home.chat("a")
    assert (await home.ask("GET", "/is_paused"))[1] == {"is_paused": False}
    assert (await home.ask("POST", "/pause?mode=wait&clear_cache=false"))[:2] == (200, {"status": "paused"})
    assert (await home.ask("GET", "/is_paused"))[1] == {"is_paused": True}
    status, refused, _ = await home.chat("a")
    assert (home.running, status) == (["a"], 503)
    assert refused["error"]["message"] == "The server is asleep or paused; POST /wake_up ends both."
    assert (await home.ask("POST", "/resume"))[:2] == (200, {"status": "resumed"})
    assert (await home.chat("a"))[0] == 200
    assert (await home.ask("POST", "/pause?mode=keep"))[0] == 400


@pytest.mark.parametrize("query", ["level=3", "level=x", "mode=keep"])
async def test_what_sleep_cannot_do_is_refused(home: Home, query: str) -> None:
    await home.open("a")
    status, body, _ = await home.ask("POST", f"/sleep?{query}")
    assert (status, body["error"]["param"]) == (400, query.partition("=")[0])
    assert (await home.ask("POST", "/wake_up?tags=all"))[0] == 400
    assert (await home.ask("GET", "/is_sleeping"))[1] == {"is_sleeping": False}


async def test_sleep_ends_running_requests_only_if_asked_to(home: Home) -> None:
    home.script = say("a", reason="")  # never ends
    await home.open("a")
    data = orjson.dumps({"model": "a", "prompt": "x", "stream": True})
    request = Request("POST", "/v1/completions", "", {"content-type": "application/json"}, data, "test")
    response = await home.app.handle(request)
    asleep = asyncio.create_task(home.ask("POST", "/sleep"))
    await asyncio.sleep(0.02)
    assert (home.running, asleep.done()) == (["a"], False)
    assert (await home.ask("GET", "/health"))[0] == 503  # the server now rejects requests
    assert (await home.ask("POST", "/sleep?mode=abort"))[0] == 200
    assert home.running == []
    await response.aclose()
    assert (await asleep)[0] == 200


async def test_a_changed_configuration_replaces_a_model_and_the_next_request_loads_it(home: Home) -> None:
    home.max_loaded = 1
    await home.open("a")
    await home.chat("a")
    home.want("a", max_num_seqs=3)
    assert (await home.ask("POST", "/v1/config/reload"))[0] == 200
    assert (await home.chat("a"))[0] == 200
    assert (home.running, home.most, home.cut) == (["a"], 1, [])
    home.want()
    await home.ask("POST", "/v1/config/reload")
    assert (await home.chat("a"))[0] == 404
    while home.running:
        await asyncio.sleep(0.005)


async def test_a_request_that_was_read_for_the_old_model_is_served_by_one_that_is_not_loaded_yet(home: Home) -> None:
    await home.open("a")
    await home.chat("a")
    old = home.app.registry.get("a", TextModel)
    home.want("a", max_num_seqs=3)
    await home.ask("POST", "/v1/config/reload")
    new = home.app.registry.get("a")
    assert (new is old, new.known) == (False, False)
    assert old.image_tokens is None
    assert old.token_strings([65]) == ["A"]
    generation = await old.start(TextPrompt("x"), SamplingParams(max_tokens=5), OutputParams())
    await generation.aclose()
    assert (new.loaded, home.running) == (True, ["a"])


@pytest.mark.parametrize("replaced", [True, False], ids=["replaced", "removed"])
async def test_a_request_goes_on_with_the_model_that_it_uses(home: Home, *, replaced: bool) -> None:
    """The new model is not loaded while the old one is in memory, so a request that used both would wait for itself."""
    await home.open("a")
    await home.chat("a")
    old = home.app.registry.get("a", TextModel)
    token = current_record.set(RequestRecord("id", "POST", "/v1/completions", "", time.monotonic()))
    start = partial(old.start, TextPrompt("x"), SamplingParams(max_tokens=5), OutputParams())
    first = await start()
    home.want(*["a"] * replaced, max_num_seqs=3)
    await home.ask("POST", "/v1/config/reload")
    second = await asyncio.wait_for(start(), 60)
    await first.aclose()
    assert home.running == ["a"]
    await second.aclose()
    await until(lambda: not home.running)
    current_record.reset(token)
    assert home.cut == []
    assert (await home.chat("a"))[0] == (200 if replaced else 404)


async def test_models_are_loaded_and_unloaded_by_hand(home: Home) -> None:
    await home.open("a", "b")
    states = lambda: {m.name: m.state for m in home.app.registry.models.values()}  # noqa: E731
    for _ in range(2):
        assert (await home.ask("POST", "/models/load", {"model": "a"}))[:2] == (200, {"success": True})
        assert states() == {"a": "ready", "b": "unloaded"}
    for _ in range(2):
        assert (await home.ask("POST", "/models/unload", {"model": "a"}))[:2] == (200, {"success": True})
        assert states() == {"a": "unloaded", "b": "unloaded"}
    _, listed, _ = await home.ask("GET", "/models")
    assert [(one["id"], one["status"]) for one in listed["data"]] == [(n, {"value": "unloaded"}) for n in "ab"]
    home.broken.add("b")
    assert (await home.ask("POST", "/models/load", {"model": "b"}))[0] == 503
    assert (await home.ask("POST", "/models/load", {"model": "c"}))[0] == 404
    assert (await home.ask("POST", "/models/unload", {}))[0] == 400


async def test_keep_alive_of_a_request(home: Home) -> None:
    await home.open("a", "b", groups={"b": "permanent"})
    body = {"messages": [{"role": "user", "content": "hi"}], "keep_alive": 0}
    status, _, headers = await home.ask("POST", "/v1/chat/completions", {"model": "a", **body})
    assert (status, headers.get("Warning")) == (200, None)
    while "a" in home.running:
        await asyncio.sleep(0.005)
    status, _, headers = await home.ask("POST", "/v1/chat/completions", {"model": "b", **body})
    assert status == 200
    assert "keep_alive has no effect: this model always stays in memory" in headers["Warning"]
    assert home.running == ["b"]


async def test_a_request_for_a_model_that_is_being_added_waits(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    await home.open("a")
    reading = asyncio.Event()

    async def read_directory(self: TextModel) -> None:
        await reading.wait()

    monkeypatch.setattr(TextModel, "_read_directory", read_directory)
    home.want("a", "b")
    assert home.manager is not None
    reload = asyncio.create_task(home.manager.reload())
    await until(lambda: "b" in home.app.registry.models)
    body = {"model": "b", "messages": [{"role": "user", "content": "hi"}]}
    asked = asyncio.create_task(home.ask("POST", "/v1/chat/completions", body))
    for _ in range(20):
        await asyncio.sleep(0)
    assert not asked.done()
    reading.set()
    assert (await asked)[0] == 200
    assert await reload


async def test_a_model_that_is_added_and_cannot_be_read_is_said_so(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    await home.open("a")

    async def read_directory(self: TextModel) -> None:
        raise StartError("no such file", reason="It is not there.")

    monkeypatch.setattr(TextModel, "_read_directory", read_directory)
    home.want("a", "b")
    assert home.manager is not None
    with pytest.raises(StartError):
        await home.manager.reload()
    status, body, _ = await home.ask("POST", "/v1/completions", {"model": "b", "prompt": "x"})
    assert (status, body["error"]["code"]) == (503, "model_not_loaded")
