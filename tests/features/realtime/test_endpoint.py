"""Opening a WebSocket: handshake, model, key, origin, subprotocol."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from lean_ovms.api.app import App
from lean_ovms.config import Config
from lean_ovms.features.websocket.handshake import PROTOCOL, accept_key, mark
from lean_ovms.features.websocket.types import Upgrade
from lean_ovms.models.text_model import TextModel
from lean_ovms.transports.http11.protocol import ServerProtocol
from lean_ovms.types import Request, Response
from tests.api.conftest import MakeApp
from tests.fakes import FakeEngine
from tests.features.realtime.fakes import COMMIT, session, silence, speech_app, tone

HANDSHAKE = {
    "host": "server:8000",
    "upgrade": "websocket",
    "connection": "keep-alive, Upgrade",
    "sec-websocket-version": "13",
    "sec-websocket-key": "dGhlIHNhbXBsZSBub25jZQ==",
}


async def answer(app: App, path: str = "/v1/realtime", *, websocket: bool = True, **headers: str) -> Response:
    plain, _, query = path.partition("?")
    sent = HANDSHAKE | {name.replace("_", "-"): value for name, value in headers.items()}
    request = Request("GET", plain, query, sent)
    if websocket:
        mark(request)
    response = await app.handle(request)
    await response.aclose()
    return response


def error(response: Response) -> Any:
    assert isinstance(response.body, bytes)
    return orjson.loads(response.body)["error"]


def asked_for(headers: dict[str, str]) -> str:
    protocol = ServerProtocol(Config())
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    protocol.feed(f"GET / HTTP/1.1\r\n{lines}\r\n".encode("latin-1"))
    request = protocol.next_request()
    assert request is not None
    return request.upgrade


def test_the_example_of_the_standard() -> None:
    """The example is in RFC 6455, 1.3."""
    assert accept_key("dGhlIHNhbXBsZSBub25jZQ==") == "s3pPLMBiTxaQ9kYGzzhZRbK+xOo="
    assert asked_for(HANDSHAKE) == PROTOCOL


@pytest.mark.parametrize(
    ("change", "status"),
    [
        ({"upgrade": ""}, 426),
        ({"connection": "close"}, 426),
        ({"sec-websocket-version": "8"}, 426),
        ({"sec-websocket-key": ""}, 400),
        ({"sec-websocket-key": "\xff" * 24}, 400),
    ],
)
async def test_a_request_that_opens_no_websocket(change: dict[str, str], status: int) -> None:
    app, _ = await speech_app()
    headers = HANDSHAKE | change
    assert asked_for(headers) == ""
    response = await answer(app, websocket=False, **change)
    assert response.status == status
    if status == 426:
        assert ("Upgrade", "websocket") in response.headers
        assert ("Sec-WebSocket-Version", "13") in response.headers
        assert error(response)["code"] == "upgrade_required"


async def test_models_that_do_not_transcribe(make_app: MakeApp) -> None:
    app, engine = await speech_app(max_realtime_message_bytes=5000)
    opened = await answer(app, "/v1/realtime?model=w", sec_websocket_protocol="other")
    assert isinstance(opened, Upgrade)
    assert (opened.max_message_bytes, opened.subprotocol) == (5000, "")
    response = await answer(app, "/v1/realtime?" + "a=1&" * 101)
    assert (response.status, "more than 100 parameters" in error(response)["message"]) == (400, True)
    engine.state = "restarting"
    assert (await answer(app)).status == 503
    chat, _ = await make_app(())
    response = await answer(chat)
    assert response.status in (400, 404)
    assert "not for speech to text" in error(response)["message"]
    both, _ = await speech_app()
    model = TextModel(Config(fake_engine=True, model_name="m"), FakeEngine(()))  # type: ignore[arg-type]
    await model.load()
    both.registry.install(model)
    assert isinstance(await answer(both), Upgrade)
    response = await answer(both, "/v1/realtime?model=m")
    assert "/v1/chat/completions" in error(response)["message"]
    response = await answer(both, "/v1/realtime?model=x")
    assert (response.status, error(response)["code"]) == (404, "model_not_found")


async def test_the_key_is_needed_and_a_browser_sends_it_as_a_subprotocol() -> None:
    app, _ = await speech_app(api_key="secret")
    assert (await answer(app)).status == 401
    assert (await answer(app, authorization="Bearer wrong")).status == 401
    assert isinstance(await answer(app, authorization="Bearer secret"), Upgrade)
    offered = "realtime, openai-insecure-api-key.secret, openai-beta.realtime-v1"
    response = await answer(app, sec_websocket_protocol=offered)
    assert isinstance(response, Upgrade)
    assert response.subprotocol == "realtime"
    assert (await answer(app, sec_websocket_protocol="realtime, openai-insecure-api-key.wrong")).status == 401
    http = Request("GET", "/v1/models/w", "", {"sec-websocket-protocol": offered})
    protected = App(app.config.replace(protect_models=True), [])
    assert (await protected.handle(http)).status == 401


@pytest.mark.parametrize(
    ("allowed", "origin", "status"),
    [
        ("*", "https://evil.example", 101),
        ("https://a.example,https://b.example", "https://b.example", 101),
        ("https://a.example", "https://evil.example", 403),
        ("https://a.example", "null", 403),
        ("localhost", "http://127.0.0.1:3000", 101),
        ("localhost", "http://localhost.evil.com", 403),
        ("https://a.example", "http://server:8000", 101),  # the server's own page
        ("https://a.example", "", 101),  # not a browser
    ],
)
async def test_pages_of_other_origins(allowed: str, origin: str, status: int) -> None:
    app, _ = await speech_app(allowed_origins=allowed)
    response = await answer(app, **({"origin": origin} if origin else {}))
    assert response.status == status
    if status == 403:
        assert error(response)["code"] == "origin_not_allowed"


async def test_several_speech_models_are_chosen_by_the_first_event() -> None:
    app, engine = await speech_app("a", "b")
    async with session(app) as client:
        assert client.created["session"]["audio"]["input"]["transcription"]["model"] == ""
        await client.send("session.update", model="b")
        await client.append(tone(0.5, 0.35), silence(0.1))
        await client.send(COMMIT, final=True)
        await client.until("transcription.done")
    assert len(engine.asked) == 1
