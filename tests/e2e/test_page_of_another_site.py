"""Pages of other origins in a real browser: what they can make it send, and what the server rejects."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from tests.e2e.conftest import Process, start_process
from tests.e2e.test_page import CHROMIUM, sync_api

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed"),
    pytest.mark.filterwarnings("default"),
]
EVERYWHERE = "--host-resolver-rules=MAP *.example 127.0.0.1"
"""Makes all names resolve to this machine: for another server's page, and for a name that now points to ours (DNS
rebinding)."""
SEND = """async ([url, body, kind, mode]) => {
  const blob = new Blob([body], kind ? {type: kind} : {});
  try { return (await fetch(url, {method: 'POST', mode, body: blob})).status; } catch (error) { return String(error); }
}"""
OPEN = """url => new Promise(done => {
  const socket = new WebSocket(url);
  socket.onopen = () => done('open');
  socket.onerror = () => done('refused');
})"""
HIDDEN = 0
"""The status that a page sees in the mode no-cors."""
CHAT = '{"model": "m", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}'


class EmptyPage(BaseHTTPRequestHandler):
    """A page of another server."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture(scope="module")
def other_port() -> Iterator[int]:
    with ThreadingHTTPServer(("127.0.0.1", 0), EmptyPage) as other:
        thread = threading.Thread(target=other.serve_forever)
        thread.start()
        yield other.server_address[1]
        other.shutdown()
        thread.join()


@pytest.fixture(scope="module")
def page() -> Iterator[Any]:
    with sync_api.sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", EVERYWHERE])
        yield chromium.new_page()
        chromium.close()


@pytest.fixture(scope="module")
def named(other_port: int) -> Iterator[Process]:
    """A server for the pages of one origin."""
    allowed = ["--allowed_origins", f"http://good.example:{other_port}"]
    with start_process("--fake_engine", "true", "--model_name", "m", "--metrics_enable", "true", *allowed) as process:
        process.wait_for("ready: m")
        yield process


def answered(server: Process) -> float:
    """Returns the number of requests that the model has answered."""
    lines = httpx.get(f"{server.url}/metrics").text.splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith("vllm:request_success_total"))


def test_only_its_own_page_stops_a_server_with_the_default_options(page: Any, other_port: int) -> None:
    with start_process("--fake_engine", "true", "--model_name", "m") as process:
        process.wait_for("ready: m")

        def asleep() -> Any:
            return httpx.get(f"{process.url}/is_sleeping").json()["is_sleeping"]

        page.goto(f"http://evil.example:{other_port}/")
        for kind in ("", "text/plain"):
            assert page.evaluate(SEND, [f"{process.url}/sleep", "{}", kind, "no-cors"]) == HIDDEN
            assert page.evaluate(SEND, [f"{process.url}/sleep", "{}", kind, "cors"]) == 403
        chat = [f"{process.url}/v1/chat/completions", CHAT, "application/json", "cors"]
        assert page.evaluate(SEND, chat) == 200
        page.goto(f"http://evil.example:{urlsplit(process.url).port}/docs")  # a name that points to the server
        assert page.evaluate(SEND, ["/sleep", "{}", "", "same-origin"]) == 403
        assert not asleep()
        page.goto(f"{process.url}/docs")
        assert page.evaluate(SEND, ["/sleep?level=0", "{}", "", "same-origin"]) == 200
        assert asleep()


def test_what_a_page_may_not_read_does_not_run(page: Any, named: Process, other_port: int) -> None:
    socket = f"{named.url.replace('http', 'ws')}/v1/responses"
    chat = f"{named.url}/v1/chat/completions"
    before = answered(named)
    for origin in (f"http://evil.example:{other_port}", f"http://localhost:{other_port}"):
        page.goto(f"{origin}/")
        assert page.evaluate(SEND, [chat, CHAT, "", "no-cors"]) == HIDDEN
        assert "TypeError" in page.evaluate(SEND, [chat, CHAT, "application/json", "cors"])
        assert page.evaluate(SEND, [f"{named.url}/v1/conversations", "{}", "", "no-cors"]) == HIDDEN
        assert page.evaluate(OPEN, socket) == "refused"
    page.goto(f"http://evil.example:{urlsplit(named.url).port}/")
    assert page.evaluate(SEND, ["/v1/chat/completions", CHAT, "", "same-origin"]) == 403
    assert page.evaluate(OPEN, socket.replace("127.0.0.1", "evil.example")) == "refused"
    assert answered(named) == before
    page.goto(f"http://good.example:{other_port}/")
    assert page.evaluate(SEND, [chat, CHAT, "application/json", "cors"]) == 200
    assert page.evaluate(OPEN, socket) == "open"
    page.goto(f"{named.url}/docs")
    assert page.evaluate(SEND, ["/v1/chat/completions", CHAT, "application/json", "same-origin"]) == 200
    assert answered(named) == before + 2
