"""Answers of Ray's proxies themselves have the form that the clients of a path expect; answers of replicas are
unchanged."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import orjson
import pytest

from lean_ovms import ray_serve
from lean_ovms.errors import StartError
from lean_ovms.features.ray import deployment
from lean_ovms.ray_serve import PROXY_CALLBACK, proxy_middlewares

CHAT, MESSAGES, OLLAMA = "/v1/chat/completions", "/v1/messages", "/api/chat"
TEXT, JSON = [(b"content-type", b"text/plain; charset=utf-8")], [(b"content-type", b"application/json")]


async def answered(app: Any, path: str = CHAT, kind: str = "http") -> list[Any]:
    """Returns what a client of a proxy with this app gets."""
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        return {"type": "http.request", "body": b"{}"}

    headers = [(b"x-request-id", b"r1")]
    scope = {"type": kind, "method": "POST", "path": path, "headers": headers, "client": ("10.0.0.1", 5)}
    for middleware in proxy_middlewares():
        app = middleware.cls(app, *middleware.args, **middleware.kwargs)  # type: ignore[call-arg]
    await app(scope, receive, send)
    return sent


def says(status: int, headers: Any, *parts: bytes) -> Any:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": status, "headers": headers})
        for place, part in enumerate(parts):
            await send({"type": "http.response.body", "body": part, "more_body": place < len(parts) - 1})

    return app


async def dies(scope: Any, receive: Any, send: Any) -> None:
    """Does what Ray's proxy does when a replica has died: nothing (2.60)."""


async def raises(scope: Any, receive: Any, send: Any) -> None:
    raise RuntimeError("ActorDiedError")


@pytest.mark.parametrize("app", [dies, raises])
@pytest.mark.parametrize(("path", "status"), [(CHAT, 503), (MESSAGES, 529), (OLLAMA, 503)])
async def test_a_replica_that_dies_before_its_answer_is_an_error_object(app: Any, path: str, status: int) -> None:
    start, body = await answered(app, path)
    headers = dict(start["headers"])
    assert (start["status"], headers[b"retry-after"], headers[b"x-request-id"]) == (status, b"2", b"r1")
    assert (headers[b"content-type"], int(headers[b"content-length"])) == (b"application/json", len(body["body"]))
    found = orjson.loads(body["body"])
    message = found["error"] if path == OLLAMA else found["error"]["message"]
    assert "died" in message
    if path == CHAT:
        assert (found["error"]["type"], found["error"]["code"]) == ("server_error", "replica_died")
    if path == MESSAGES:
        assert (found["type"], found["error"]["type"]) == ("error", "overloaded_error")


@pytest.mark.parametrize(
    ("status", "headers", "kind", "wait_s"),
    [
        (404, TEXT, "not_found_error", None),
        (408, TEXT, "timeout_error", None),
        (429, [*TEXT, (b"retry-after", b"7")], "rate_limit_error", b"7"),
        (500, TEXT, "server_error", b"2"),
        (503, TEXT, "server_error", b"2"),
    ],
)
async def test_a_text_of_rays_is_an_error_object(status: int, headers: Any, kind: str, wait_s: bytes | None) -> None:
    start, body = await answered(says(status, headers, b"Path not ", b"found"))
    assert (start["status"], dict(start["headers"]).get(b"retry-after")) == (status, wait_s)
    error = orjson.loads(body["body"])["error"]
    assert (error["message"], error["type"]) == ("Path not found", kind)


@pytest.mark.parametrize(
    ("status", "headers", "parts"), [(200, TEXT, [b"metrics"]), (400, JSON, [b"{}"]), (200, JSON, [b"a", b"b", b""])]
)
async def test_what_a_replica_answers_stays(status: int, headers: Any, parts: list[bytes]) -> None:
    start, *bodies = await answered(says(status, headers, *parts))
    assert (start["status"], start["headers"], [body["body"] for body in bodies]) == (status, headers, parts)


async def test_a_stream_that_breaks_off_stays_broken() -> None:
    async def breaks(scope: Any, receive: Any, send: Any) -> None:
        await says(200, JSON, b"half", b"")(scope, receive, send)
        raise RuntimeError("ActorDiedError")

    with pytest.raises(RuntimeError, match="ActorDied"):
        await answered(breaks)


async def test_websockets_are_rays() -> None:
    assert await answered(dies, kind="websocket") == []


class Serve:
    """Ray Serve, as far as an application uses it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, initialized: bool) -> None:
        self.settings: dict[str, Any] = {}
        config = SimpleNamespace(RequestRouterConfig=lambda **given: given)
        ray = SimpleNamespace(serve=self, is_initialized=lambda: initialized)
        for name, module in (("ray", ray), ("ray.serve", self), ("ray.serve.config", config)):
            monkeypatch.setitem(sys.modules, name, module)
        self.environ: dict[str, str] = {}
        monkeypatch.setattr(deployment.os, "environ", self.environ)

    def deployment(self, **settings: Any) -> Any:
        self.settings = settings
        return lambda target: SimpleNamespace(bind=lambda **options: options)


@pytest.mark.parametrize(("initialized", "named"), [(False, True), (True, False)])
def test_a_cluster_that_an_application_starts_has_the_middlewares(
    monkeypatch: pytest.MonkeyPatch, initialized: bool, named: bool
) -> None:
    serve = Serve(monkeypatch, initialized=initialized)
    assert deployment.application(model_path="x") == {"model_path": "x"}
    assert serve.environ == ({PROXY_CALLBACK: "lean_ovms.ray_serve:proxy_middlewares"} if named else {})


def test_an_application_has_the_router_by_prefixes_unless_it_names_one(monkeypatch: pytest.MonkeyPatch) -> None:
    serve = Serve(monkeypatch, initialized=True)
    deployment.application(model_path="x")
    assert serve.settings["request_router_config"] == {
        "request_router_class": deployment.ROUTER,
        "request_routing_stats_period_s": deployment.REPORT_PERIOD_S,
    }
    module, _, name = deployment.ROUTER.rpartition(".")
    assert f"class {name}(" in (Path(deployment.__file__).parents[3] / f"{module.replace('.', '/')}.py").read_text()
    deployment.application(deployment={"request_router_config": "own", "num_replicas": 2})
    assert serve.settings == {"max_ongoing_requests": 100, "request_router_config": "own", "num_replicas": 2}


def test_the_builder_takes_one_dictionary_of_texts_or_values(monkeypatch: pytest.MonkeyPatch) -> None:
    serve = Serve(monkeypatch, initialized=True)
    given = {"model_path": "x", "deployment": '{"num_replicas": 2}'}
    assert ray_serve.app(given) == {"model_path": "x"}
    assert serve.settings["num_replicas"] == 2
    assert "deployment" in given
    ray_serve.app({"deployment": {"num_replicas": 3}})
    assert serve.settings["num_replicas"] == 3
    with pytest.raises(StartError, match="deployment is not JSON"):
        ray_serve.app({"deployment": "num_replicas=2"})
    for wrong in ("[2]", [2]):
        with pytest.raises(StartError, match="deployment is not a JSON object"):
            ray_serve.app({"deployment": wrong})
    with pytest.raises(StartError, match=r"model_pth=x .did you mean --model_path"):
        ray_serve.app({"model_pth": "x"})
