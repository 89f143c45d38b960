"""Which requests are accepted, by the page that sends them, the server name that they use, and what their route
changes."""

from __future__ import annotations

import socket
from itertools import product
from pathlib import Path

import pytest

from lean_ovms.api import middleware, router
from lean_ovms.api.app import App
from lean_ovms.api.middleware import machine_names
from lean_ovms.config import Config
from lean_ovms.errors import Forbidden
from lean_ovms.manifest import EVERYWHERE
from lean_ovms.types import Request

CHANGES = {
    "/sleep",
    "/wake_up",
    "/pause",
    "/resume",
    "/reset_prefix_cache",
    "/prewarm",
    "/slots/{id}",
    "/lora-adapters",
    "/models/load",
    "/models/unload",
    "/api/pull",
    "/api/delete",
    *(base + "/prefix_cache/" + action for base in EVERYWHERE for action in ("save", "restore", "reset")),
    *(base + path for base in ("/v1", "/v3", "/v3/v1") for path in ("/config/reload",)),
    *(base + path for base in ("/v1", "/v3", "/v3/v1") for path in ("/load_lora_adapter", "/unload_lora_adapter")),
    *(base + "/tool_servers/" + what for base in ("/v1", "/v3", "/v3/v1") for what in ("call", "prompt", "resource")),
}
OWN_DATA = ("/responses", "/conversations", "/files", "/messages/batches")
"""Below these paths, clients can only access objects whose random ids they know."""
CHAT, SLEEP, MODELS, RESPONSES = "/v1/chat/completions", "/sleep", "/v1/models", "/v1/responses"
EVIL = "http://evil.example"
GOOD = "https://good.example"
OPEN, NAMED, KEY = {}, {"allowed_origins": GOOD}, {"api_key": "secret"}
BOTH = {**NAMED, **KEY}


def outcome(options: dict[str, str] | App, method: str, path: str, peer: str = "192.0.2.7:1", **headers: str) -> str:
    """Returns the code of the error of an app or of one with these options, "" if the request is accepted."""
    app = options if isinstance(options, App) else App(Config(fake_engine=True, **options), [])  # type: ignore[arg-type]
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    try:
        app.check_head(Request(method, path, "", {"host": "192.0.2.1:8000", **named}, peer=peer))
    except Forbidden as error:
        return f"{error.code}" if error.status == 403 else f"{error.status}"
    return ""


FOREIGN, UNKNOWN = "origin_not_allowed", "host_not_allowed"


@pytest.mark.parametrize(
    ("options", "method", "path", "headers", "refused"),
    [
        # By default, all pages may use the API, but none may change the server.
        (OPEN, "POST", SLEEP, {}, ""),
        (OPEN, "POST", SLEEP, {"origin": EVIL}, FOREIGN),
        (OPEN, "POST", SLEEP, {"origin": "null"}, FOREIGN),
        (OPEN, "POST", SLEEP, {"sec-fetch-site": "cross-site"}, FOREIGN),
        (OPEN, "POST", SLEEP, {"sec-fetch-site": "same-site"}, FOREIGN),
        (OPEN, "POST", SLEEP, {"sec-fetch-site": "same-origin"}, ""),
        (OPEN, "POST", SLEEP, {"origin": "http://192.0.2.1:8000"}, ""),
        (OPEN, "POST", SLEEP, {"origin": "http://192.0.2.1:8001"}, FOREIGN),
        (OPEN, "POST", SLEEP, {"origin": "http://192.0.2.1"}, FOREIGN),
        (OPEN, "POST", SLEEP, {"host": "evil.example"}, UNKNOWN),
        (OPEN, "POST", SLEEP, {"host": "evil.example:8000", "origin": EVIL + ":8000"}, UNKNOWN),
        (OPEN, "POST", SLEEP, {"host": "localhost.evil.example"}, UNKNOWN),
        (OPEN, "POST", SLEEP, {"host": "evil.example."}, UNKNOWN),
        (OPEN, "POST", SLEEP, {"host": "127.0.0.1.evil.example"}, UNKNOWN),
        (OPEN, "POST", SLEEP, {"host": "[fd00::1].evil.example"}, UNKNOWN),
        (OPEN, "POST", SLEEP, {"host": "a:b.evil.example"}, UNKNOWN),
        (OPEN, "POST", SLEEP, {"host": "a, evil.example"}, UNKNOWN),
        (OPEN, "POST", CHAT, {"origin": EVIL}, ""),
        (OPEN, "POST", CHAT, {"origin": EVIL, "host": "evil.example"}, ""),
        (OPEN, "POST", CHAT, {"host": "llm.default.svc.cluster.example"}, ""),
        (OPEN, "GET", MODELS, {"host": "evil.example", "origin": EVIL}, ""),
        (OPEN, "OPTIONS", SLEEP, {"origin": EVIL}, ""),
        # The configured page may do both, others neither.
        (NAMED, "POST", SLEEP, {"origin": GOOD}, ""),
        (NAMED, "POST", CHAT, {"origin": GOOD}, ""),
        (NAMED, "POST", CHAT, {}, ""),
        (NAMED, "POST", CHAT, {"origin": EVIL}, FOREIGN),
        (NAMED, "POST", RESPONSES, {"origin": "null"}, FOREIGN),
        (NAMED, "GET", RESPONSES, {"origin": EVIL}, FOREIGN),
        (NAMED, "GET", MODELS, {"sec-fetch-site": "cross-site"}, FOREIGN),
        (NAMED, "GET", MODELS, {"sec-fetch-site": "none"}, ""),
        (NAMED, "GET", "/metrics", {"origin": EVIL}, FOREIGN),
        (NAMED, "GET", "/docs", {"sec-fetch-site": "cross-site"}, ""),  # a link on another site
        (NAMED, "GET", "/", {"sec-fetch-site": "cross-site"}, ""),
        (NAMED, "POST", CHAT, {"origin": EVIL, "host": "evil.example"}, UNKNOWN),
        # A page's GET to its own origin has no Origin header.
        (NAMED, "GET", MODELS, {"host": "evil.example"}, UNKNOWN),
        (NAMED, "GET", "/health", {"host": "evil.example"}, ""),
        (NAMED, "GET", MODELS, {"host": "lean-ovms:8000"}, ""),  # the name in Docker Compose
        ({"allowed_origins": "localhost"}, "POST", SLEEP, {"origin": "http://localhost:3000"}, ""),
        ({"allowed_origins": "localhost"}, "POST", SLEEP, {"origin": EVIL}, FOREIGN),
        ({"allowed_origins": ""}, "POST", CHAT, {"origin": EVIL}, FOREIGN),
        ({"allowed_origins": f"*,{GOOD}"}, "POST", SLEEP, {"origin": GOOD}, ""),
        # A foreign page does not have the key.
        (KEY, "POST", SLEEP, {"origin": EVIL}, ""),
        (KEY, "POST", SLEEP, {"host": "llm.example"}, ""),
        (BOTH, "POST", SLEEP, {"origin": EVIL}, FOREIGN),
        (BOTH, "POST", CHAT, {"origin": "https://llm.example", "host": "llm.example"}, ""),
        # Names of the server.
        ({"allowed_hosts": "llm.example"}, "POST", SLEEP, {"host": "LLM.example:8000"}, ""),
        ({"allowed_hosts": "llm.example"}, "POST", SLEEP, {"host": "llm.example", "origin": "https://llm.example"}, ""),
        (
            {"allowed_hosts": "llm.example"},
            "POST",
            SLEEP,
            {"host": "localhost", "origin": "https://llm.example"},
            FOREIGN,
        ),
        ({"allowed_hosts": "llm.example"}, "POST", CHAT, {"host": "evil.example"}, UNKNOWN),
        ({"allowed_hosts": "llm.example", **KEY}, "POST", CHAT, {"host": "evil.example"}, UNKNOWN),
        ({"allowed_hosts": "llm.example"}, "GET", "/health", {"host": "evil.example"}, ""),
        ({"allowed_hosts": "*"}, "POST", SLEEP, {"host": "evil.example"}, ""),
        ({"allowed_hosts": "*"}, "POST", SLEEP, {"origin": EVIL}, FOREIGN),
    ],
)
def test_who_may_do_what(
    options: dict[str, str], method: str, path: str, headers: dict[str, str], refused: str
) -> None:
    assert outcome(options, method, path, **headers) == refused


@pytest.mark.parametrize(
    "host",
    [
        *("127.0.0.1", "10.1.2.3:8000", "[::1]:8000", "[fd00::1]", "localhost:80", "LOCALHOST", "a.localhost"),
        *("box.local", "host.docker.internal:8000", "lean-ovms", "", socket.gethostname()),
    ],
)
def test_addresses_and_names_that_nobody_can_register_are_known(host: str) -> None:
    assert outcome({}, "POST", SLEEP, host=host) == ""


def test_the_machines_names_are_those_beside_its_own_in_the_hosts_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hosts = tmp_path / "hosts"
    hosts.write_text("127.0.0.1 localhost\n0.0.0.0 ads.example # box\n\n127.0.1.1 Box.corp.example\tbox # box\n")
    monkeypatch.setattr(socket, "gethostname", lambda: "Box")
    monkeypatch.setattr(middleware, "Path", lambda _: hosts)
    assert machine_names() == {"box", "box.corp.example"}
    assert outcome({}, "POST", SLEEP, host="box.corp.example:8000") == ""
    assert outcome({}, "POST", SLEEP, host="ads.example") == UNKNOWN


def test_a_server_without_a_hosts_file_knows_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(middleware, "Path", lambda _: Path("/none/such"))
    assert machine_names() == {socket.gethostname().lower()}


@pytest.mark.parametrize(
    ("trusted", "peer", "forwarded", "origin", "refused"),
    [
        ("10.0.0.0/8", "10.1.1.1:5", "llm.example", "https://llm.example", ""),
        ("10.0.0.0/8", "10.1.1.1:5", "evil.example, llm.example", "https://llm.example", ""),
        ("10.0.0.0/8", "10.1.1.1:5", "llm.example", EVIL, FOREIGN),
        ("10.0.0.0/8", "10.1.1.1:5", "evil.example, llm.example", EVIL, FOREIGN),
        ("10.0.0.0/8", "192.0.2.7:5", "llm.example", "https://llm.example", FOREIGN),
        ("unix", "unix", "llm.example", "https://llm.example", ""),
        ("", "10.1.1.1:5", "llm.example", "https://llm.example", FOREIGN),
        ("all", "10.1.1.1:5", "llm.example", "https://llm.example", FOREIGN),
    ],
)
def test_a_proxy_that_is_trusted_says_how_it_was_asked(
    trusted: str, peer: str, forwarded: str, origin: str, refused: str
) -> None:
    options = {"trusted_proxies": trusted, "root_path": "/llm"}
    assert outcome(options, "POST", "/llm" + SLEEP, peer, origin=origin, x_forwarded_host=forwarded) == refused


def test_where_the_servers_names_are_listed_a_proxy_adds_none() -> None:
    options = {"trusted_proxies": "unix", "allowed_hosts": "llm.example"}
    for host, refused in (("llm.example", ""), ("evil.example", UNKNOWN)):
        assert outcome(options, "POST", SLEEP, "unix", origin=f"http://{host}", x_forwarded_host=host) == refused


async def test_a_preflight_for_what_would_be_refused_is_refused() -> None:
    """Otherwise a foreign page could send X-Forwarded-Host through a proxy that passes it on."""
    app = App(Config(fake_engine=True, access_log=False), [])
    headers = {"origin": EVIL, "access-control-request-method": "POST", "host": "localhost"}
    asked = {path: (await app.handle(Request("OPTIONS", path, "", headers))).status for path in (SLEEP, CHAT, "/x")}
    assert asked == {SLEEP: 403, CHAT: 200, "/x": 200}


async def test_the_refusal_is_an_error_object_that_names_the_option() -> None:
    app = App(Config(fake_engine=True, access_log=False), [])
    for headers, option in (({"host": "evil.example"}, b"--allowed_hosts"), ({"origin": EVIL}, b"--allowed_origins")):
        response = await app.handle(Request("POST", SLEEP, "", headers))
        assert response.status == 403
        assert isinstance(response.body, bytes)
        assert option in response.body
        assert b"permission_error" in response.body


def test_every_route_that_changes_the_server_says_so() -> None:
    """A new route is marked, or answers without an effect on other clients, or only concerns the client's own data."""
    assert {route.path for route in router.every() if route.changes} == CHANGES
    assert all(route.auth == "key" for route in router.every() if route.changes)
    others = {route.path for route in router.every() if route.method not in ("GET", "POST")} - CHANGES
    assert all(any(data in path for data in OWN_DATA) for path in others), others


def test_a_page_never_gets_beyond_what_its_origin_allows() -> None:
    """Whatever the options and other headers are, a foreign page changes nothing without a key, under any name."""
    for origins, hosts in product(("*", "localhost", GOOD, ""), ("", "llm.example")):
        app = App(Config(fake_engine=True, allowed_origins=origins, allowed_hosts=hosts), [])
        for host, site, path in product(
            ("localhost", "llm.example", "evil.example"), ("", "cross-site", "same-origin"), sorted(CHANGES)
        ):
            headers = {"host": host, "origin": EVIL, **({"sec_fetch_site": site} if site else {})}
            assert outcome(app, "DELETE" if path == "/api/delete" else "POST", path, **headers)
