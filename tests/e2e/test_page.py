"""The page in a real browser: Chromium, driven by Playwright, where both are installed."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from typing import Any

import pytest

from tests.e2e.conftest import Process, start_process

sync_api = pytest.importorskip("playwright.sync_api")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = [
    pytest.mark.model,
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed"),
    pytest.mark.filterwarnings("default"),
]
HOSTILE = """<img src=x onerror="document.title='broken'"> <script>document.title='broken'</script>
[a](javascript:document.title='broken') <svg onload="document.title='broken'"> https://example.org/ok
\u202eright to left
```html
<b>code</b>
```
"""


@pytest.fixture(scope="module")
def server() -> Iterator[Process]:
    process = start_process("--metrics_enable")
    process.wait_for("ready: demo")
    yield process
    process.end()


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with sync_api.sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield chromium
        chromium.close()


@pytest.fixture
def page(browser: Any, server: Process) -> Iterator[Any]:
    """The page with its models read. After the test: no error in the console, no request to another host."""
    context = browser.new_context()
    opened, problems = context.new_page(), []
    opened.on("console", lambda line: problems.append(line.text) if line.type == "error" else None)
    opened.on("pageerror", lambda error: problems.append(str(error)))
    inside = (server.url, "data:", "blob:")
    opened.on("request", lambda asked: None if asked.url.startswith(inside) else problems.append(asked.url))
    opened.goto(server.url + "/")
    opened.locator("#model option").first.wait_for(state="attached")
    opened.select_option("#model", "demo")
    yield opened
    context.close()
    assert [text for text in problems if "status of 4" not in text] == []


def ask(page: Any, text: str) -> None:
    page.fill("#text", text)
    page.press("#text", "Enter")


def test_a_conversation_streams_and_survives_a_reload(page: Any) -> None:
    ask(page, "Hello!")
    page.locator(".message.assistant .cost").wait_for()
    assert "tokens/s" in page.inner_text(".message.assistant .cost")
    before = page.inner_text(".message.assistant .body")
    assert before
    page.reload()
    page.locator(".message.assistant .cost").wait_for()
    assert page.inner_text(".message.assistant .body") == before


def test_an_answer_can_be_stopped_and_made_again(page: Any) -> None:
    page.fill("#settings [name=max_tokens]", "4000")
    page.fill("#settings [name=stop]", "")
    ask(page, "Count from 1 to 100.")
    page.locator("#stop:enabled").wait_for()
    page.click("#stop")
    page.locator("#send:enabled").wait_for()
    page.fill("#settings [name=max_tokens]", "5")
    page.get_by_role("button", name="Regenerate").click()
    page.get_by_text("Cut off at the limit of tokens.").wait_for()


def test_an_error_names_its_field(page: Any) -> None:
    page.fill("#settings [name=temperature]", "7")
    ask(page, "x")
    page.locator(".failed").wait_for()
    assert "(field: temperature)" in page.inner_text(".failed")


def test_the_server_view_shows_models_and_load(page: Any) -> None:
    page.click("#tab-server")
    page.locator("#charts figure").first.wait_for()
    assert "demo" in page.inner_text("#models")
    assert page.locator("#charts svg").count() == 9


def answer_with(page: Any, *deltas: dict[str, Any]) -> None:
    """Every chat request is answered by these deltas, whatever the model would say."""
    chunks = [{"choices": [{"index": 0, "delta": delta, "finish_reason": None}]} for delta in deltas]
    body = "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks) + "data: [DONE]\n\n"
    page.route("**/v1/chat/completions", lambda route: route.fulfill(content_type="text/event-stream", body=body))


def test_what_a_model_writes_stays_text(page: Any) -> None:
    answer_with(page, {"content": HOSTILE})
    ask(page, "x")
    page.locator("#send:enabled").wait_for()
    box = page.locator(".message.assistant .body")
    assert "<script>document.title" in box.inner_text()
    assert box.locator("img, script, svg, b").count() == 0
    assert [link.get_attribute("href") for link in box.locator("a").all()] == ["https://example.org/ok"]
    assert page.title() == "lean_ovms"


def test_a_tool_call_is_answered_by_hand(page: Any) -> None:
    call = {"index": 0, "id": "c1", "function": {"name": "add", "arguments": '{"a": 1}'}}
    answer_with(page, {"tool_calls": [call]})
    ask(page, "x")
    page.locator(".call textarea").fill("2")
    answer_with(page, {"reasoning_content": "hm", "content": "It is 2."})
    page.get_by_role("button", name="Send the result").click()
    page.get_by_text("It is 2.").wait_for()
    assert page.locator(".message details").count() == 1


def test_the_key_is_asked_for_and_nothing_is_shown_without_it(browser: Any) -> None:
    process = start_process(
        "--fake_engine", "--model_name", "private-one", "--protect_models", env={"API_KEY": "secret"}
    )
    try:
        process.wait_for("ready: private-one")
        page = browser.new_page()
        page.goto(process.url + "/")
        page.get_by_text("The server needs an API key.").wait_for()
        assert "private-one" not in page.content()
        page.fill("#key", "secret")
        page.press("#key", "Tab")
        page.locator("#model option").first.wait_for(state="attached")
        assert page.input_value("#model") == "private-one"
        page.close()
    finally:
        process.end()
