"""Routing, keys, CORS, request ids, and handlers that fail."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

import pytest

from lean_ovms._version import __version__
from lean_ovms.api import router
from lean_ovms.types import Request
from tests.api.conftest import MakeApp, get, post, whole
from tests.fakes import say

CHAT = "/v1/chat/completions"
HELLO = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}


async def test_an_unknown_path_is_a_404_and_a_known_one_names_its_methods(make_app: MakeApp) -> None:
    app, _ = await make_app()
    for path in ("/nope", "/v1", "/v1/"):
        response = await get(app, path)
        assert response.status == 404
        error = (await whole(response))["error"]
        assert (error["code"], error["message"]) == (
            "not_found",
            f"Invalid request URL: {path}; /docs lists the endpoints",
        )
    response = await get(app, CHAT)
    assert response.status == 405
    assert ("Allow", "POST") in response.headers
    response = await post(app, "/health", {})
    assert ("Allow", "GET, HEAD") in response.headers
    assert (await whole(response))["error"]["message"] == "/health accepts GET, not POST"


async def test_what_reports_on_the_server_is_served_beyond_the_limit_of_connections(make_app: MakeApp) -> None:
    app, _ = await make_app()
    vital = ["/health", "/ping", "/metrics", "/v2/health/live", "/v2/health/ready", "/v2/models/a/b/ready"]
    assert all(app.is_vital(method, path) for path in vital for method in ("GET", "HEAD"))
    others = [("POST", "/ping"), ("GET", "/v1/models"), ("GET", "/docs"), ("POST", CHAT), ("GET", "/nope")]
    assert not any(app.is_vital(method, path) for method, path in others)


async def test_the_root_answers_clients_that_look_for_a_server(make_app: MakeApp) -> None:
    app, _ = await make_app(api_key="secret")
    assert (await app.handle(Request("HEAD", "/"))).status == 200
    assert (await whole(await get(app, "/")))["name"] == "lean_ovms"


A_WRONG_BASE_URL: list[tuple[Any, ...]] = [
    ("/audio/speech", "/v1/audio/speech"),
    ("/v1/v1/chat/completions", CHAT),
    ("/v1//chat/completions", CHAT),
    ("/openai/deployments/m/chat/completions", "/chat/completions"),
    ("/v1/ping", "/ping"),
    ("/v1/v1/models/", "/v1/models"),
    ("/x" * 30_000 + "/v3/models", "/v3/models"),
    ("/v1/response", "/v1/responses"),
    ("/v3/response", "/v3/responses"),
    ("/v1/model", "/v1/models"),
    ("/v1/embedding", "/v1/embeddings"),
    ("/v1/embeddigns", "/v1/embeddings"),
    ("/v1/chat/completion", CHAT),
    ("/openai/v1/chat/completion", CHAT),
    ("/v1/completion", "/v1/completions"),
    ("/v1/message", "/v1/messages"),
    ("/v1/chats/completions", CHAT),
    ("/reranks", "/rerank"),
    ("/v1/audio/transcription", "/v1/audio/transcriptions"),
    ("/x" * 30_000 + "/v1/model", "/v1/models"),
    *((path, "") for path in ("/v1/fine_tuning/jobs", "/nope", "/v1/x", "/" + "a" * 60_000, "/v1")),
]


async def test_a_wrong_base_url_is_distinguished_from_a_right_one(make_app: MakeApp) -> None:
    app, _ = await make_app()
    for path, meant in A_WRONG_BASE_URL:
        response = await get(app, path)
        assert response.status == 404, path
        hint = f"did you mean {meant}?" if meant else "/docs lists the endpoints"
        assert (await whole(response))["error"]["message"].endswith(f"; {hint}"), path


async def test_a_server_without_its_documentation_does_not_point_to_it(make_app: MakeApp) -> None:
    app, _ = await make_app(without="docs_page")
    assert (await whole(await get(app, "/nope")))["error"]["message"] == "Invalid request URL: /nope"
    assert (await whole(await get(app, "/"))).keys() == {"name", "version"}
    app, _ = await make_app()
    assert (await whole(await get(app, "/")))["docs"] == "/docs"


async def test_a_slash_at_the_end_is_no_other_path(make_app: MakeApp) -> None:
    app, _ = await make_app(say("x"))
    assert (await whole(await get(app, "/v1/models/")))["object"] == "list"
    assert (await whole(await post(app, CHAT + "/", HELLO)))["object"] == "chat.completion"
    assert (await get(app, CHAT + "/")).status == 405
    assert (await get(app, "/v1/models//")).status == 404
    assert (await whole(await get(app, "/v1/models/m/")))["id"] == "m"
    assert (await get(app, "/v1/models/m//")).status == 404


async def test_options_is_answered_on_every_path_with_cors(make_app: MakeApp) -> None:
    app, _ = await make_app(allowed_origins="https://a.example", allow_credentials=True)
    response = await app.handle(Request("OPTIONS", "/anything"))
    assert response.status == 200
    assert ("Access-Control-Allow-Origin", "https://a.example") in response.headers
    assert ("Access-Control-Allow-Credentials", "true") in response.headers


PREFLIGHT = {
    "origin": "https://b.example",
    "access-control-request-method": "DELETE",
    "access-control-request-headers": "authorization,content-type,x-stainless-os",
}


async def test_a_page_may_send_a_key_and_headers_of_its_own(make_app: MakeApp) -> None:
    app, _ = await make_app(api_key="secret")
    response = await app.handle(Request("OPTIONS", CHAT, headers=PREFLIGHT))
    assert response.status == 200
    assert ("Access-Control-Allow-Headers", "authorization,content-type,x-stainless-os") in response.headers
    assert ("Access-Control-Allow-Methods", "DELETE") in response.headers
    assert ("Access-Control-Max-Age", "600") in response.headers


async def test_a_preflight_gets_nothing_beyond_what_is_configured(make_app: MakeApp) -> None:
    app, _ = await make_app(allowed_headers="X-Own", allowed_methods="GET")
    headers = (await app.handle(Request("OPTIONS", CHAT, headers=PREFLIGHT))).headers
    assert [v for k, v in headers if k.startswith("Access-Control-Allow-") and k[21:] != "Origin"] == ["GET", "X-Own"]
    app, _ = await make_app()
    asked = {**PREFLIGHT, "access-control-request-headers": "x\r\nSet-Cookie: y"}
    headers = (await app.handle(Request("OPTIONS", CHAT, headers=asked))).headers
    assert [v for k, v in headers if k == "Access-Control-Allow-Headers"] == ["*"]


async def test_of_several_allowed_origins_a_page_gets_its_own(make_app: MakeApp) -> None:
    app, _ = await make_app(allowed_origins="https://a.example, https://b.example")
    for origin, told in [("https://b.example", "https://b.example"), ("https://c.example", "https://a.example")]:
        headers = (await get(app, "/v1/models", origin=origin)).headers
        assert [v for k, v in headers if k == "Access-Control-Allow-Origin"] == [told]
        assert ("Vary", "Origin") in headers


@pytest.mark.parametrize("allowed", ["localhost", "https://a.example, localhost"])
async def test_pages_of_the_own_machine_may_be_allowed_on_every_port(make_app: MakeApp, allowed: str) -> None:
    """llama.cpp has --cors-origins localhost for this. Other pages get no header, or the one with the configured
    origin."""
    app, _ = await make_app(allowed_origins=allowed)

    async def answered(origin: str) -> list[str]:
        headers = (await get(app, "/v1/models", origin=origin)).headers
        assert ("Vary", "Origin") in headers
        return [v for k, v in headers if k == "Access-Control-Allow-Origin"]

    for origin in ("http://localhost", "https://localhost:8080", "http://127.0.0.1:3000", "http://[::1]:3000"):
        assert await answered(origin) == [origin]
    others = allowed.split(", ")[:-1]
    for origin in ("", "localhost", "http://notlocalhost", "http://localhost.evil.com", "http://localhost:80.evil.com"):
        assert await answered(origin) == others


OPEN = {
    *("/", "/version", "/load", "/ping", "/health", "/v1/health", "/v2/health/live", "/v2/health/ready"),
    *("/v2", "/api/version", "/docs", "/docs/", "/docs/search", "/docs/{id}", "/web/actions", "/web/{id}"),
}


async def test_every_route_is_guarded_and_the_lists_of_models_where_they_are_protected(make_app: MakeApp) -> None:
    app, _ = await make_app(api_key="secret")
    protected, _ = await make_app(api_key="secret", protect_models=True)
    assert {route.path for route in router.every() if route.auth == "open"} == OPEN
    for route in router.every():
        request = Request(route.method, route.path)
        if route.auth in ("key", "admin"):
            assert (await app.handle(request)).status == 401, route.path
        if route.auth == "models":
            assert (await app.handle(request)).status != 401, route.path
            assert (await protected.handle(request)).status == 401, route.path
    assert (await get(protected, "/v1/models", authorization="Bearer secret")).status == 200
    assert (await get(protected, "/health")).status == 200


async def test_a_request_id_comes_back_if_harmless(make_app: MakeApp) -> None:
    app, _ = await make_app()
    assert ("X-Request-Id", "abc-1") in (await get(app, "/health", x_request_id="abc-1")).headers
    for bad in ("a\r\nSet-Cookie: x", "x" * 1000, "é", ""):
        sent = dict((await get(app, "/health", x_request_id=bad)).headers)["X-Request-Id"]
        assert sent != bad
        assert len(sent) == 32


async def test_a_bug_in_a_handler_is_a_500_without_details(make_app: MakeApp, caplog: pytest.LogCaptureFixture) -> None:
    def script(prompt: object, sampling: object) -> None:
        raise ZeroDivisionError("secret detail")

    app, _ = await make_app(script)
    with caplog.at_level(logging.CRITICAL, "lean_ovms.api"):
        response = await post(app, CHAT, HELLO)
    error = (await whole(response))["error"]
    assert (response.status, error["message"], error["code"]) == (500, "internal error", "internal_error")


async def test_a_model_has_no_field_that_open_webui_takes_for_its_own(make_app: MakeApp) -> None:
    """If a model has `pipeline`, Open WebUI calls POST /v1/{model}/filter/inlet, and answers every chat with "Not
    Found". It reads `meta` only inside of `info`; llama.cpp's server has one in this place, too."""
    app, engine = await make_app()
    reason = "a network that the paged engine does not support"
    engine.info = replace(engine.info, pipeline="LM_CB", pipeline_reason=reason)
    model = await whole(await get(app, "/v1/models/m"))
    assert model["generates_by"] == {"type": "LM_CB", "reason": reason}
    theirs = "actions arena connection_type filters info ollama pipe pipeline provider"
    assert not {*theirs.split()} & set(model)


async def test_health_distinguishes_ready_restarting_and_draining(make_app: MakeApp) -> None:
    app, engine = await make_app()
    for path in ("/health", "/v2/health/ready", "/v2/health/live", "/ping"):
        assert (await get(app, path)).status == 200
    engine.state = "restarting"
    response = await get(app, "/health")
    assert response.status == 503
    assert "m is restarting" in (await whole(response))["error"]["message"]
    assert (await get(app, "/v2/health/live")).status == 200
    assert (await post(app, CHAT, HELLO)).status == 503
    engine.state = "ready"
    app.services.draining = True
    assert (await get(app, "/v2/health/ready")).status == 503


async def test_kserves_clients_get_the_name_and_version_of_the_server(make_app: MakeApp) -> None:
    app, _ = await make_app(api_key="secret")
    assert await whole(await get(app, "/v2")) == {"name": "lean_ovms", "version": __version__, "extensions": []}


@pytest.mark.parametrize(("state", "level"), [("loading", "DEBUG"), ("restarting", "INFO")])
async def test_a_probe_while_models_load_is_not_logged_at_info(
    make_app: MakeApp, caplog: pytest.LogCaptureFixture, state: str, level: str
) -> None:
    app, engine = await make_app(access_log=True)
    engine.state = state
    caplog.set_level("DEBUG", "lean_ovms.access")
    for path in ("/health", "/v2/health/ready", "/v2/models/m/ready"):
        response = await get(app, path)
        await response.aclose()
        assert response.status == 503
    assert [record.levelname for record in caplog.records if record.name == "lean_ovms.access"] == [level] * 3
