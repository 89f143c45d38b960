"""The page in a real browser: Chromium, driven by Playwright, if both are installed."""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import subprocess
import sys
import wave
from base64 import b64decode
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import Process, start_process

sync_api = pytest.importorskip("playwright.sync_api")
CHROMIUM = os.environ.get("PAGE_BROWSER") or next(
    filter(None, map(shutil.which, ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome"))), None
)
"""The browser. The one without a user interface takes two thirds of the CPU time of the others."""
pytestmark = [
    pytest.mark.model,
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed"),
    pytest.mark.filterwarnings("default"),
]
DATA = Path(__file__).parents[1] / "data"
FAKE_MICROPHONE = ("--use-fake-device-for-media-stream", "--use-fake-ui-for-media-stream")


@pytest.fixture
def server(page_server: Process) -> Process:
    return page_server


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with sync_api.sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", *FAKE_MICROPHONE])
        yield chromium
        chromium.close()


@contextmanager
def watched(place: Any, url: str = "", **options: Any) -> Iterator[Any]:
    """Yields a new page of a context, or of a browser, which makes a context for it. There must be no error in its
    console, except refused requests and frames, and, with a URL, no request to another host."""
    opened, problems = place.new_page(**options), []
    opened.on("console", lambda line: problems.append(line.text) if line.type == "error" else None)
    opened.on("pageerror", lambda error: problems.append(str(error)))
    if url:
        inside = (url, "data:", "blob:")
        opened.on("request", lambda asked: None if asked.url.startswith(inside) else problems.append(asked.url))
        opened.goto(url + "/")
    yield opened
    opened.close()
    assert [text for text in problems if "status of 4" not in text and "frame-ancestors" not in text] == []


@contextmanager
def loaded(place: Any, url: str) -> Iterator[Any]:
    """Yields the page of a server with its models loaded."""
    with watched(place, url) as opened:
        opened.locator("#model option").first.wait_for(state="attached")
        opened.select_option("#model", "demo")
        yield opened


@pytest.fixture(scope="module")
def profile(browser: Any) -> Iterator[Any]:
    """A context with an empty page, which keeps the process of other pages alive.

    A page in it takes half of the CPU time of a page in a new context.
    """
    context = browser.new_context()
    context.new_page()
    yield context
    context.close()


@pytest.fixture
def page(profile: Any, server: Process) -> Iterator[Any]:
    """The page with its models loaded, in a context that has kept nothing of other tests."""
    empty, *others = profile.pages
    for other in others:
        other.close()
    everything = {"origin": server.url, "storageTypes": "all"}
    profile.new_cdp_session(empty).send("Storage.clearDataForOrigin", everything)
    with loaded(profile, server.url) as page:
        yield page


@pytest.fixture
def page_with_clock(browser: Any, server: Process) -> Iterator[Any]:
    """The same in a context of its own, because a clock is set for all pages of a context."""
    with loaded(browser, server.url) as page:
        page.clock.install()
        yield page


def until(page: Any, condition: str) -> None:
    """Waits until a condition is true. Playwright's own function evaluates a text, which the page forbids."""
    page.evaluate(
        f"() => new Promise((done) => {{ const look = () => {condition} ? done() : setTimeout(look, 20); look(); }})"
    )


CHATS = "**/v1/chat/completions"


def ask(page: Any, text: str) -> None:
    page.click("#text")
    page.keyboard.type(text)
    page.keyboard.press("Enter")


def sent(page: Any, act: Callable[[], Any]) -> dict[str, Any]:
    """Returns the chat request that an act sends."""
    with page.expect_request(CHATS) as asked:
        act()
    body: dict[str, Any] = asked.value.post_data_json
    return body


def texts(body: dict[str, Any]) -> list[str]:
    """Returns the texts of a chat request."""
    return [one["content"] for one in body["messages"]]


def answer_with(
    page: Any,
    *deltas: dict[str, Any],
    usage: dict[str, Any] | None = None,
    finish: str | None = None,
    end: str = "data: [DONE]\n\n",
) -> None:
    """Answers every chat request from now on with these deltas in place of the model. `finish` is the finish reason."""
    chunks: list[Any] = [{"choices": [{"index": 0, "delta": delta, "finish_reason": None}]} for delta in deltas]
    chunks += [{"choices": [{"index": 0, "delta": {}, "finish_reason": finish}]}] * bool(finish)
    chunks += [{"choices": [], "usage": usage}] * bool(usage)
    body = "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks) + end
    page.unroute(CHATS)
    page.route(CHATS, lambda route: route.fulfill(content_type="text/event-stream", body=body))


def answered(page: Any, question: str, *deltas: dict[str, Any], **more: Any) -> None:
    """Asks something, and waits for the end of this answer."""
    answer_with(page, *deltas, **more)
    ask(page, question)
    page.locator("#send:enabled").wait_for()


def serve(page: Any, *models: dict[str, Any]) -> None:
    """Opens the page of a server with these models."""
    page.route("**/v1/models", lambda route: route.fulfill(json={"data": models, "object": "list"}))
    page.reload()


def set_option(page: Any, name: str, value: str | bool) -> None:
    """Changes a setting of the conversation, in the sheet that is closed at first."""
    if page.locator("#settings").is_hidden():
        page.click("#open-settings")
    field = page.locator(f"#settings [name={name}]")
    if isinstance(value, bool):
        field.set_checked(value)
    elif field.evaluate("field => field.tagName") == "SELECT":
        field.select_option(value)
    else:
        write(field, value)


def write(field: Any, text: str) -> None:
    """Types a text over the content of a field, as users do; ``fill`` would set it without keys."""
    field.press("Control+a")
    field.press_sequentially(text)


def violations(page: Any) -> list[str]:
    """Returns the rules of axe that a page breaks, with the elements. What keeps a rule is not reported, which takes as
    long as the checks."""
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    found = axe.run(page, options={"resultTypes": ["violations"]}).response["violations"]
    return [f"{one['id']}: {node['html']}" for one in found for node in one["nodes"]]


TEXT_FIELDS = "textarea, input:not([type=checkbox], [type=file])"


def assert_takes_keys(page: Any, field: Any) -> None:
    """Checks that keys write into a field, Ctrl+V pastes the 7 in the clipboard, and Tab leaves the field."""
    element = field.element_handle()  # may disappear when the focus leaves
    name = element.evaluate("field => field.outerHTML")
    write(field, "7")
    assert element.input_value() == "7", name
    page.keyboard.press("Control+v")
    assert element.input_value() == "77", name
    page.keyboard.press("Tab")
    assert not element.evaluate("field => field === document.activeElement"), name


def test_every_text_field_takes_keys(browser: Any, server: Process) -> None:
    """All fields of each view, in the state with most fields, and those of the page that describes the API."""
    context = browser.new_context(permissions=["clipboard-read", "clipboard-write"])
    page = context.new_page()
    tested = 0

    def try_all(scope: str = "body") -> None:
        nonlocal tested
        fields = page.locator(scope).locator(TEXT_FIELDS).locator("visible=true")
        tested += fields.count()
        for place in range(fields.count()):
            assert_takes_keys(page, fields.nth(place))

    page.goto(server.url + "/")
    page.get_by_role("button", name="Tell me a joke.").wait_for()
    page.evaluate("navigator.clipboard.writeText('7')")
    answer_with(page, {"tool_calls": [{"index": 0, "id": "c1", "function": {"name": "add", "arguments": "{}"}}]})
    ask(page, "x")
    page.locator(".call textarea").wait_for()
    page.get_by_role("button", name="Rename x").press("Enter")
    try_all("#conversations")
    page.get_by_role("button", name="Edit").press("Enter")
    set_option(page, "format", "json_schema")
    page.evaluate("document.querySelector('#key-form').hidden = false")
    try_all()
    page.click("#close-settings")
    for view in ("texts", "speech", "images"):
        page.evaluate("(name) => { document.querySelector(`#tab-${name}`).hidden = false; }", view)
        page.click(f"#tab-{view}")
        page.evaluate(
            "(name) => document.querySelectorAll(`#view-${name} [hidden]`).forEach((e) => e.hidden = false)", view
        )
        try_all(f"#view-{view}")
    assert tested >= 25
    page.goto(server.url + "/docs#post-/v1/chat/completions")
    page.locator("details[open] textarea").wait_for()
    try_all("details[open]")
    for name in ("#key", "#search"):
        assert_takes_keys(page, page.locator(name))
    context.close()


def test_the_field_for_a_message_has_the_focus(browser: Any, page: Any, server: Process) -> None:
    assert page.evaluate("document.activeElement.id") == "text"
    page.keyboard.type("Hello")
    assert page.input_value("#text") == "Hello"
    with watched(browser, server.url, viewport={"width": 390, "height": 800}) as phone:
        phone.get_by_role("button", name="Tell me a joke.").wait_for()
        assert phone.evaluate("document.activeElement.id") == ""


@pytest.mark.parametrize("key", ["Enter", "Control+Enter"])
def test_a_message_is_edited_with_the_keyboard(page: Any, key: str) -> None:
    answered(page, "first", {"content": "Yes."})
    edit = page.get_by_role("button", name="Edit")
    edit.press("Enter")
    page.keyboard.type("!")
    page.keyboard.press("Escape")
    assert page.locator(".editor").count() == 0
    assert edit.evaluate("button => button === document.activeElement")
    page.keyboard.press("Enter")
    page.keyboard.press("End")
    page.keyboard.press("Shift+Enter")
    page.keyboard.type("second")
    assert texts(sent(page, lambda: page.keyboard.press(key))) == ["first\nsecond"]
    assert page.evaluate("document.activeElement.id") == "text"


def test_escape_and_enter_in_a_field_are_of_the_field_alone(page: Any) -> None:
    """Both keys end the action of the field; Escape does not also stop an answer that is arriving."""
    answered(page, "x", {"content": "Yes."})
    page.unroute(CHATS)
    page.route(CHATS, lambda route: None)
    ask(page, "y")
    page.get_by_text("Waiting for the first token…").wait_for()
    rename = page.get_by_role("button", name="Rename x")
    rename.press("Enter")
    page.keyboard.type("other")
    page.keyboard.press("Escape")
    assert page.locator("#conversations .title").all_inner_texts() == ["x"]
    rename.press("Enter")
    page.keyboard.type("other")
    page.keyboard.press("Enter")
    assert page.locator("#conversations .title").all_inner_texts() == ["other"]
    page.locator("#open-settings").press("Enter")
    page.locator("#settings [name=system]").press("Escape")
    assert page.locator("#settings").is_hidden()
    assert page.evaluate("document.activeElement.id") == "open-settings"
    assert page.locator("#stop").is_visible()
    page.keyboard.press("Escape")
    page.locator(".failed", has_text="Stopped.").wait_for()


def test_a_key_that_composes_a_character_sends_nothing(page: Any) -> None:
    """A Japanese or Chinese input method uses Enter to choose and Escape to go back."""
    set_option(page, "system", "x")
    for field in ("#text", "#settings [name=system]"):
        for key in ("Enter", "Escape"):
            page.dispatch_event(
                field, "keydown", {"key": key, "isComposing": True, "bubbles": True, "cancelable": True}
            )
    assert page.locator(".message").count() == 0
    assert page.locator("#settings").is_visible()


def test_answers_name_their_model_where_several_chat(page: Any) -> None:
    answered(page, "x", {"content": "Yes."})
    assert page.locator(".message.assistant .who").count() == 0
    serve(page, *({"id": name, "task": "text_generation"} for name in ("one", "two")))
    page.locator(".message.assistant .who", has_text="demo").wait_for()
    page.select_option("#model", "two")
    ask(page, "y")
    page.locator(".message.assistant .who", has_text="two").wait_for()


def test_a_rate_needs_some_tokens(page: Any) -> None:
    page.evaluate("{ let now = 0; performance.now = () => (now += 10); }")  # the whole answer arrives at once
    for tokens in (31, 32):
        usage = {"prompt_tokens": 9, "completion_tokens": tokens}
        answered(page, "x", {"content": "A"}, {"content": "b."}, usage=usage)
        line = page.locator(".message.assistant .cost", has_text=f"{tokens} completion tokens").inner_text()
        assert ("tokens/s" in line) == (tokens == 32)


def test_a_conversation_streams_survives_a_reload_and_is_stopped_and_made_again(page: Any) -> None:
    ask(page, "Hello!")
    page.locator(".message.assistant .cost").wait_for()
    before = page.inner_text(".message.assistant .body")
    assert before
    page.reload()
    page.locator(".message.assistant .cost").wait_for()
    assert page.inner_text(".message.assistant .body") == before

    def never_ends(route: Any) -> None:
        route.continue_(post_data=json.dumps(route.request.post_data_json | {"ignore_eos": True}))

    page.click("#new")
    set_option(page, "max_tokens", "100000")
    page.route("**/chat/completions", never_ends)
    ask(page, "Count from 1 to 100.")
    page.locator(".message.assistant .body p").wait_for()
    page.click("#stop")
    page.locator("#send:enabled").wait_for()
    set_option(page, "max_tokens", "5")
    page.get_by_role("button", name="Regenerate").click()
    page.get_by_text("Cut off at the limit of tokens.").wait_for()
    set_option(page, "temperature", "7")
    ask(page, "x")
    page.locator(".failed", has_text="(field: temperature)").wait_for()


@pytest.mark.parametrize(("status", "message", "wait"), [(400, "It is wrong.", 0), (429, "The queue is full.", 2)])
def test_a_failed_answer_is_no_message_and_can_be_tried_again(
    page_with_clock: Any, status: int, message: str, wait: int
) -> None:
    page = page_with_clock

    def refuse(route: Any) -> None:
        headers = {"Retry-After": str(wait)} if wait else {}
        route.fulfill(status=status, headers=headers, json={"error": {"message": message}})

    page.route(CHATS, refuse)
    ask(page, "one")
    page.locator(".failed", has_text=message).wait_for()
    assert page.locator(".message").count() == 1
    again = page.locator(".failed button")
    if wait:
        assert again.is_disabled()
        assert again.inner_text() in ("Try again in 2 s", "Try again in 1 s")
        page.clock.run_for(3000)
    assert (again.inner_text(), again.is_disabled()) == ("Try again", False)
    page.reload()
    page.locator(".failed", has_text=message).wait_for()
    assert texts(sent(page, lambda: ask(page, "two"))) == ["one", "two"]
    page.locator("#send:enabled").wait_for()
    assert page.locator(".failed").count() == 1
    answer_with(page, {"content": "Both."})
    page.clock.run_for(1000 * wait + 1000)
    assert texts(sent(page, page.get_by_role("button", name="Try again").click)) == ["one", "two"]
    page.locator("#messages").get_by_text("Both.").wait_for()
    assert (page.locator(".failed").count(), page.locator(".message").count()) == (0, 3)


def test_an_answer_without_an_end_was_lost_and_can_be_continued(page: Any) -> None:
    answered(page, "one", {"content": "Ha"}, end="")
    page.locator(".failed", has_text="The connection was lost.").wait_for()
    answer_with(page, {"content": "lf."})
    page.get_by_role("button", name="Continue").click()
    page.locator("#messages").get_by_text("Half.").wait_for()
    assert page.locator(".failed").count() == 0


def test_a_screen_reader_is_told_what_is_new(page: Any) -> None:
    said = page.locator("#said")
    answered(page, "one", {"content": "First."})
    assert said.text_content() == "First."
    answered(page, "two", {"content": "Second."})
    assert said.text_content() == "Second."
    page.unroute(CHATS)
    page.route(CHATS, lambda route: route.fulfill(status=400, json={"error": {"message": "It is wrong."}}))
    ask(page, "three")
    page.locator(".failed").wait_for()
    assert said.text_content() == "It is wrong."
    assert page.locator("[aria-live] .message, [role=status] .message").count() == 0


def test_the_server_view_shows_models_and_load(page: Any) -> None:
    page.click("#tab-server")
    page.locator("#models", has_text="demo-embed").wait_for()
    row = page.locator("#models tr", has=page.get_by_text("demo", exact=True))
    cells = row.locator("th, td").all_inner_texts()
    assert cells[:4] == ["demo", "loaded", "Chat", "131,072"]
    assert re.fullmatch(r"[\d,]+ MiB", cells[4])
    assert cells[5:] == ["CPU", "PAGED", "Unload"]
    page.locator("#options tr").first.wait_for()
    assert "--metrics_enable\ttrue" in page.inner_text("#options").splitlines()
    assert page.locator("#charts svg").count() == 10
    assert set(page.locator("#charts .times span:first-child").all_inner_texts()) == {"1 min ago"}
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    with page.expect_response("**/server_info") as first:
        pass
    with page.expect_response("**/server_info") as second:
        pass
    assert set(asked) == {first.value.url, second.value.url}
    assert len(second.value.body()) < 2000
    load, unload = (page.get_by_role("button", name=f"{act} demo-embed", exact=True) for act in ("Load", "Unload"))
    load.or_(unload).wait_for()
    if unload.count():
        unload.click()
    load.click()
    unload.click()
    load.wait_for()


def test_the_server_view_without_metrics(speech_page: Any) -> None:
    speech_page.click("#tab-server")
    speech_page.locator("#charts figure").first.wait_for()
    assert speech_page.locator("#charts svg").count() == 3
    assert "--metrics_enable" in speech_page.inner_text("#load-note")
    with speech_page.expect_response("**/server_info") as polled:
        pass
    assert (polled.value.status, len(polled.value.body()) < 1000) == (200, True)


def test_tabs_are_what_is_served_and_each_has_its_own_model(page: Any) -> None:
    tasks = ["rerank", "embeddings", "text_generation", "text_generation", "speech2text", "text2speech"]
    tasks += ["image_generation"]
    models = [
        {"id": f"{task}-{place}", "task": task, "output_modalities": ["audio" if task == "text2speech" else "text"]}
        for place, task in enumerate(tasks)
    ]
    serve(page, *models)
    page.locator("#tab-speech:visible").wait_for()

    def offered(view: str) -> list[str]:
        page.click(f"#tab-{view}")
        names: list[str] = page.locator("#model option").all_inner_texts()
        return names

    assert page.locator("nav button:visible").all_inner_texts() == ["Chat", "Embeddings", "Speech", "Images", "Server"]
    assert page.locator("#view-chat:visible").count() == 1
    assert offered("chat") == ["text_generation-2", "text_generation-3"]
    page.select_option("#model", "text_generation-3")
    assert offered("texts") == ["rerank-0", "embeddings-1"]
    assert page.locator("#embed-panel:visible").count() == 0
    page.select_option("#model", "embeddings-1")
    assert page.locator("#embed-panel:visible").count() == 1
    assert offered("speech") == ["speech2text-4", "text2speech-5"]
    assert page.locator("[data-feature=speech]:visible").count() == 1
    page.select_option("#model", "text2speech-5")
    assert page.locator("[data-feature=voice]:visible").count() == 1
    assert offered("images") == ["image_generation-6"]
    page.click("#tab-server")
    assert page.locator("#model:visible").count() == 0
    page.reload()
    page.locator("#tab-speech:visible").wait_for()
    for view, name in (("chat", "text_generation-3"), ("texts", "embeddings-1"), ("speech", "text2speech-5")):
        page.click(f"#tab-{view}")
        assert page.input_value("#model") == name


def test_texts_are_compared_beside_a_chat_model(page: Any) -> None:
    page.click("#tab-texts")
    assert page.locator("#model option").all_inner_texts() == ["demo-embed"]
    write(page.locator("#embed-texts"), "a cat\na dog")
    page.click("#embed")
    page.locator("#embed-result table").wait_for()


def test_no_known_payload_becomes_markup(page: Any) -> None:
    """Each as a whole answer, as a table cell, in a list, and all of them in one streamed answer."""
    payloads = (DATA / "xss_payloads.txt").read_text("utf-8").splitlines()
    assert len(payloads) > 200
    before = page.evaluate(FINGERPRINT)
    found = page.evaluate(RENDER_EACH, payloads)
    assert set(found["tags"]) <= {*TAGS.split()}
    assert set(found["attributes"]) <= {*ATTRIBUTES.split()}
    assert [address for address in found["addresses"] if not re.match(r"https?://|mailto:", address)] == []
    answered(page, "x", {"content": "\n\n".join(payloads)})
    page.wait_for_timeout(200)
    assert (page.evaluate(FINGERPRINT), page.title()) == (before, "lean_ovms")


FINGERPRINT = """() => [window.alerted, document.querySelectorAll("script, iframe, object, embed, base, meta").length,
    document.querySelector("#messages").tagName, location.origin, location.pathname]"""
RENDER_EACH = r"""async (payloads) => {
  window.alert = () => { window.alerted = true; };
  const { markdown } = await import("./web/markdown.js");
  const box = document.body.appendChild(document.createElement("div"));
  for (const payload of payloads)
    for (const text of [payload, `|a|\n|-|\n|${payload}|`, `- [ ] ${payload}`, "```html\n" + payload + "\n```"])
      box.append(markdown(text));
  await new Promise((done) => setTimeout(done, 1500));
  const [tags, attributes, addresses] = [new Set(), new Set(), new Set()];
  for (const element of box.querySelectorAll("*")) {
    tags.add(element.localName);
    for (const { name } of element.attributes) attributes.add(name);
    for (const name of ["href", "src", "xlink:href", "action"])
      if (element.hasAttribute(name) && element.localName !== "use") addresses.add(element.getAttribute(name));
  }
  box.remove();
  return { tags: [...tags], attributes: [...attributes], addresses: [...addresses] };
}"""
TAGS = """
a annotation blockquote br button code del div em h2 h3 h4 h5 h6 hr input li math menclose merror mi mn mo mover
mpadded mrow mspace mstyle msub msubsup msup mtext munder munderover ol p pre semantics span strong svg table tbody td
th thead tr ul use
"""
ATTRIBUTES = """
aria-hidden aria-label checked class disabled display encoding fence form height href lspace mathcolor mathvariant rel
rspace separator start stretchy style tabindex target title type width xmlns
"""


def test_code_is_coloured_and_formulas_are_set(page: Any) -> None:
    answer_with(page, {"content": "```python\ndef f(): return 1\n```\n\nSo $x^2$ is\n\n$$\\frac{1}{2}$$\n\n- [x] done"})
    ask(page, "x")
    page.locator(".markdown .hljs-keyword", has_text="def").wait_for()
    page.locator(".markdown .math:not(.block) math msup").wait_for()
    page.locator(".markdown .math.block math mfrac").wait_for()
    assert page.locator(".markdown .task input:checked").count() == 1


def test_an_answer_that_is_made_again_and_an_edited_question_keep_what_was_there(page: Any) -> None:
    answered(page, "first", {"content": "One."})
    answer_with(page, {"content": "Two."})
    page.get_by_role("button", name="Regenerate").click()
    page.locator(".assistant .pager", has_text="2/2").wait_for()
    assert page.inner_text(".message.assistant .body") == "Two."
    page.get_by_role("button", name="Previous version").click()
    page.get_by_text("One.").wait_for()
    answer_with(page, {"content": "Three."})
    page.locator(".message.user").hover()
    page.get_by_role("button", name="Edit").click()
    write(page.get_by_label("Edited message"), "second")
    assert texts(sent(page, page.locator(".editor").get_by_role("button", name="Send").click)) == ["second"]
    page.locator(".user .pager", has_text="2/2").wait_for()
    page.locator("#messages").get_by_text("Three.").wait_for()
    page.reload()
    page.locator("#messages").get_by_text("Three.").wait_for()
    assert page.inner_text(".user .pager") == "2/2"
    page.locator(".user").get_by_role("button", name="Previous version").click()
    assert page.inner_text(".message.user .body") == "first"
    assert (page.inner_text(".message.assistant .body"), page.inner_text(".assistant .pager")) == ("One.", "1/2")


def test_conversations_are_found_renamed_deleted_and_brought_back(page: Any) -> None:
    for question in ("about the sea", "about the sky"):
        page.click("#new")
        answered(page, question, {"content": "Whales sing."})
    titles = page.locator("#conversations .title")
    assert titles.all_inner_texts() == ["about the sky", "about the sea"]
    write(page.locator("#search"), "SEA")
    assert titles.all_inner_texts() == ["about the sea"]
    write(page.locator("#search"), "whales")
    assert titles.count() == 2
    page.fill("#search", "")
    titles.last.hover()
    page.get_by_role("button", name="Rename about the sea").click()
    write(page.get_by_label("Name of the conversation"), "Oceans")
    page.keyboard.press("Enter")
    titles.first.hover()
    page.get_by_role("button", name="Delete about the sky").click()
    page.locator(".welcome").wait_for()
    assert titles.all_inner_texts() == ["Oceans"]
    page.get_by_role("button", name="Undo").click()
    page.locator(".message.assistant").wait_for()
    assert titles.all_inner_texts() == ["about the sky", "Oceans"]
    page.reload()
    page.locator(".message.assistant").wait_for()
    assert titles.all_inner_texts() == ["about the sky", "Oceans"]


def test_a_browser_that_keeps_nothing_and_texts_that_do_not_arrive(browser: Any, server: Process) -> None:
    context = browser.new_context(locale="de-DE")
    context.add_init_script("indexedDB.open = () => { throw new Error('closed') }")
    context.route("**/strings/de.json", lambda route: route.fulfill(status=404, body="gone"))
    with loaded(context, server.url) as page:
        answered(page, "one", {"content": "First."})
        page.locator("#conversations").get_by_role("button", name="Delete one").click()
        page.get_by_text("The conversation was deleted.").wait_for()
        assert page.locator("#conversations button").count() == 0
    context.close()


def test_exported_conversations_are_imported_with_their_branches(page: Any, tmp_path: Path) -> None:
    answered(page, "about the sea", {"content": "Whales sing."})
    page.get_by_role("button", name="Regenerate").click()
    page.locator(".assistant .pager").wait_for()
    page.get_by_text("Appearance and files").click()
    with page.expect_download() as saved:
        page.click("#export")
    saved.value.save_as(tmp_path / "saved.json")
    page.locator("#conversations .title").hover()
    page.get_by_role("button", name="Delete about the sea").click()
    page.locator(".welcome").wait_for()
    page.set_input_files("#import-file", tmp_path / "saved.json")
    page.locator(".assistant .pager", has_text="2/2").wait_for()
    former = [{"title": "old", "messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}]
    (tmp_path / "former.json").write_text(json.dumps(former))
    page.set_input_files("#import-file", tmp_path / "former.json")
    page.locator("#conversations .title", has_text="old").wait_for()
    (tmp_path / "wrong.json").write_text('[{"messages": [{"role": "user"}]}]')
    page.set_input_files("#import-file", tmp_path / "wrong.json")
    page.get_by_text("The file cannot be imported: a message has no text").wait_for()


def test_settings_are_closed_and_of_one_conversation(page: Any) -> None:
    assert page.locator("#settings").is_hidden()
    set_option(page, "temperature", "0.5")
    set_option(page, "thinking", "off")
    assert page.get_attribute("#settings [name=top_p]", "placeholder") == "1"
    body = sent(page, lambda: answered(page, "x", {"content": "Yes."}))
    assert (body["temperature"], body["chat_template_kwargs"]) == (0.5, {"enable_thinking": False})
    page.click("#new")
    body = sent(page, lambda: answered(page, "y", {"content": "Yes."}))
    assert {"temperature", "chat_template_kwargs"} & body.keys() == set()
    page.get_by_role("button", name="x", exact=True).click()
    assert page.input_value("#settings [name=temperature]") == "0.5"


def test_a_model_that_is_not_in_memory_is_said_to_load(page: Any) -> None:
    serve(page, {"id": "late", "task": "text_generation", "status": {"value": "unloaded"}})
    page.get_by_text("loads with the first message").wait_for()
    page.route(CHATS, lambda route: None)
    page.locator(".try").first.click()
    page.get_by_text("Loading the model…").wait_for()
    page.click("#stop")


def test_the_share_of_the_prompt_that_is_read_is_shown(page: Any) -> None:
    """The answer never ends: it comes from a page that sends only its first part."""
    event = {"choices": [], "prompt_progress": {"total": 200, "cache": 0, "processed": 50, "time_ms": 9}}
    page.evaluate(NEVER_ENDS, f"data: {json.dumps(event)}\n\n")
    ask(page, "x")
    page.get_by_text("Reading the prompt: 25 %").wait_for()
    page.click("#stop")


NEVER_ENDS = """(text) => {
  const send = window.fetch;
  const start = (stream) => stream.enqueue(new TextEncoder().encode(text));
  const answer = () => Promise.resolve(new Response(new ReadableStream({ start })));
  window.fetch = (url, options) => String(url).endsWith("completions") ? answer() : send(url, options);
}"""


def test_a_text_file_is_attached_and_sent(page: Any) -> None:
    answer_with(page, {"content": "I see."})
    page.set_input_files("#file-input", {"name": "a.py", "mimeType": "text/x-python", "buffer": b"print(1)"})
    page.locator("#attached", has_text="a.py").wait_for()
    assert texts(sent(page, lambda: ask(page, "What is this?")))[0] == "a.py:\n```\nprint(1)\n```\n\nWhat is this?"
    page.locator(".message.user .file").wait_for()
    page.set_input_files("#file-input", {"name": "b.bin", "mimeType": "", "buffer": b"\0\1"})
    page.get_by_text("b.bin is not a text file.").wait_for()


def test_speech_becomes_text_of_the_message(page: Any) -> None:
    serve(page, {"id": "m", "task": "text_generation"}, {"id": "ears", "task": "speech2text"})
    page.locator("#dictate:visible").wait_for()
    event = {"type": "transcript.text.done", "text": "three one"}
    body = f"data: {json.dumps(event)}\n\ndata: [DONE]\n\n"
    page.route("**/v1/audio/transcriptions", lambda route: route.fulfill(content_type="text/event-stream", body=body))
    write(page.locator("#text"), "Say:")
    page.set_input_files("#file-input", {"name": "a.wav", "mimeType": "audio/wav", "buffer": b"RIFF"})
    sync_api.expect(page.locator("#text")).to_have_value("Say: three one")


@pytest.mark.parametrize(("language", "placeholder"), [("de-AT", "Nachricht"), ("zh-CN", "消息"), ("fr", "Message")])
def test_the_page_speaks_the_readers_language(browser: Any, server: Process, language: str, placeholder: str) -> None:
    with watched(browser, server.url, locale=language) as page:
        page.locator("#model option").first.wait_for(state="attached")
        assert page.get_attribute("#text", "placeholder") == placeholder
        assert page.evaluate("document.documentElement.lang") == (language[:2] if language != "fr" else "en")


def test_the_theme_is_kept(page: Any) -> None:
    page.get_by_text("Appearance and files").click()
    page.select_option("#theme", "dark")
    page.reload()
    assert page.evaluate("getComputedStyle(document.body).colorScheme") == "dark"


def test_a_tool_call_is_answered_by_hand(page: Any) -> None:
    call = {"index": 0, "id": "c1", "function": {"name": "add", "arguments": '{"a": 1}'}}
    answer_with(page, {"tool_calls": [call]})
    ask(page, "x")
    write(page.locator(".call textarea"), "2")
    answer_with(page, {"reasoning_content": "hm", "content": "It is 2."})
    page.get_by_role("button", name="Send the result").click()
    page.locator("#messages").get_by_text("It is 2.").wait_for()
    assert page.locator(".message details.thought").count() == page.locator(".message details.call").count() == 1


def test_probabilities_are_a_heat_map_with_alternatives(page: Any) -> None:
    top = [{"token": "Yes", "logprob": -0.1}, {"token": "No", "logprob": -2.5}]
    entry = {"token": "Yes", "logprob": -0.1, "top_logprobs": top}
    chunk = {"choices": [{"index": 0, "delta": {"content": "Yes"}, "logprobs": {"content": [entry]}}]}
    body = f"data: {json.dumps(chunk)}\n\ndata: [DONE]\n\n"
    page.route(CHATS, lambda route: route.fulfill(content_type="text/event-stream", body=body))
    set_option(page, "logprobs", True)
    ask(page, "x")
    page.locator("#send:enabled").wait_for()
    token = page.locator(".token")
    assert token.inner_text() == "Yes"
    assert token.get_attribute("title") == '"Yes" 90.5 %\n"No" 8.2 %'
    assert "hsl" in token.get_attribute("style") or "rgb" in token.get_attribute("style")


def test_an_image_is_attached_and_sent(page: Any) -> None:
    serve(page, {"id": "eyes", "task": "text_generation", "input_modalities": ["text", "image"]})
    page.get_by_role("button", name="Describe an image").wait_for()
    answer_with(page, {"content": "A dot."})
    png = b64decode("iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==")
    page.set_input_files("#file-input", {"name": "dot.png", "mimeType": "image/png", "buffer": png})
    page.locator("#attached img").wait_for()
    text, image = sent(page, lambda: ask(page, "What is this?"))["messages"][0]["content"]
    assert text == {"type": "text", "text": "What is this?"}
    assert b64decode(image["image_url"]["url"].removeprefix("data:image/png;base64,")) == png
    page.locator("#messages").get_by_text("A dot.").wait_for()
    assert page.locator(".message.user img").count() == 1


def test_a_narrow_screen_needs_no_scrolling_sideways(page: Any) -> None:
    page.set_viewport_size({"width": 340, "height": 640})
    wide = "a" * 300 + "\n\n```\n" + "b" * 300 + "\n```\n\n|x|y|\n|-|-|\n|" + "c" * 80 + "|d|"
    answered(page, "x", {"content": wide})
    for view in ("chat", "server"):
        page.click("#open-drawer")
        page.click(f"#tab-{view}")
        page.locator("#drawer").wait_for(state="hidden")
        assert page.evaluate("document.documentElement.scrollWidth") <= 340, view
    page.locator("#charts figure").first.wait_for()
    assert page.evaluate("document.documentElement.scrollWidth") <= 340


@pytest.mark.parametrize(
    ("width", "colors", "docs"),
    [(390, "light", True), (800, "dark", False), (1400, "dark", True)],
)
def test_the_page_is_accessible(browser: Any, server: Process, width: int, colors: str, docs: bool) -> None:
    """axe checks each view with the drawer and the settings open.

    It takes longest for the documentation, which is checked with each color once, in the narrowest and widest window.
    """
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=colors)
    page = context.new_page()
    problems: dict[str, list[str]] = {}

    def check(what: str) -> None:
        problems[what] = violations(page)

    page.goto(server.url + "/")
    page.get_by_role("button", name="Tell me a joke.").wait_for()
    check("welcome")
    text = "## A\n\n`b`\n\n```python\ndef f(): return 1  # x\n```\n\n|a|b|\n|-|-|\n|1|2|\n\n- [x] c\n\n> d $x^2$"
    answer_with(page, {"reasoning_content": "hm"}, {"content": text})
    ask(page, "x")
    page.locator(".hljs-keyword").first.wait_for()
    check("chat")
    page.click("#open-settings")
    check("settings")
    page.click("#close-settings")
    for view in ("texts", "server"):
        if width < 900:
            page.click("#open-drawer")
            if view == "texts":
                check("drawer")
        page.click(f"#tab-{view}")
        page.locator(f"#view-{view}").wait_for()
        check(view)
    if docs:
        page.goto(server.url + "/docs#post-/v1/chat/completions")
        page.locator("details[open] table").wait_for()
        check("docs")
    for path in ("features/hub", "search?q=limit+memory") if docs else ():
        page.goto(f"{server.url}/docs/{path}")
        check(path)
        assert page.evaluate("document.documentElement.scrollWidth") <= width
    context.close()
    assert {what: found for what, found in problems.items() if found} == {}


@pytest.fixture(scope="module")
def painter() -> Iterator[Process]:
    with start_process("--fake_engine", "--task", "image_generation", "--model_name", "painter") as process:
        process.wait_for("ready: painter")
        yield process


def test_images_are_shown_while_they_are_made_saved_and_stopped(browser: Any, painter: Process, tmp_path: Path) -> None:
    with watched(browser, painter.url, accept_downloads=True) as page:
        page.locator("#view-images:visible").wait_for()
        assert page.locator("#tab-chat:visible").count() == 0
        write(page.locator("#image-prompt"), "a red cat")
        for name, value in (("size", "24x16"), ("n", "2"), ("seed", "7")):
            write(page.locator(f"#image-{name}"), value)
        with page.expect_request("**/v1/images/generations") as asked:
            page.click("#draw")
        fields = {"size": "24x16", "n": 2, "seed": 7, "stream": True, "partial_images": 3}
        assert asked.value.post_data_json == {"model": "painter", "prompt": "a red cat", **fields}
        page.locator("#images figcaption").nth(1).wait_for()
        assert page.locator("#images img[alt='a red cat']").count() == 2
        captions = [" ".join(text.split()) for text in page.locator("#images figcaption").all_inner_texts()]
        assert captions == ["24x16, Seed 7 Save", "24x16, Seed 8 Save"]
        with page.expect_download() as saved:
            page.locator("#images a").first.click()
        assert saved.value.suggested_filename == "7.png"
        saved.value.save_as(tmp_path / "7.png")
        assert (tmp_path / "7.png").read_bytes().startswith(b"\x89PNG")
        assert violations(page) == []
        write(page.locator("#image-size"), "25x16")
        page.click("#draw")
        page.get_by_text("must be divisible by 8").wait_for()
        page.reload()
        page.route("**/v1/images/generations", lambda route: None)  # never answered
        write(page.locator("#image-prompt"), "x")
        page.click("#draw")
        page.locator("#draw-stop:enabled").click()
        page.locator("#draw-stop:disabled").wait_for()
        assert page.locator("#image-state").inner_text() == ""
        assert page.locator("#problem:visible").count() == 0


@pytest.fixture(scope="module")
def speaker() -> Iterator[Process]:
    with start_process("--fake_engine", "--task", "text2speech", "--model_name", "voice") as process:
        process.wait_for("ready: voice")
        yield process


@pytest.fixture
def speech_page(browser: Any, speaker: Process) -> Iterator[Any]:
    with watched(browser, speaker.url) as page:
        yield page


def test_a_text_is_spoken(speech_page: Any) -> None:
    page = speech_page
    page.locator("[data-feature=voice]:visible").wait_for()
    assert page.locator("#tab-chat:visible").count() == 0
    assert page.locator("#voice option").all_inner_texts() == ["low", "loud"]
    write(page.locator("#speak-text"), "The first sentence is here. The second one is there!")
    page.select_option("#voice", "loud")
    write(page.locator("#speed"), "2")
    page.evaluate("""() => {
        window.players = [];
        window.AudioContext = class extends AudioContext {
          constructor(options) {
            super(options);
            players.push(this);
          }
        };
    }""")
    with page.expect_request("**/v1/audio/speech") as asked:
        page.click("#speak")
    assert asked.value.post_data_json["voice"] == "loud"
    assert asked.value.post_data_json["speed"] == 2
    page.locator("#speak-result audio").wait_for()
    seconds = page.locator("#speak-result audio").evaluate(
        "audio => new Promise((done) => audio.readyState ? done(audio.duration)"
        " : audio.onloadedmetadata = () => done(audio.duration))"
    )
    assert seconds == pytest.approx(0.26, abs=0.02)
    assert "0.3 s of speech" in page.inner_text("#speak-result")
    until(page, "players.length === 1 && players[0].state === 'closed'")


def test_a_model_that_is_not_loaded_yet_speaks_and_then_shows_its_voices(speech_page: Any) -> None:
    page, url = speech_page, "**/v1/models"
    model = {"id": "voice", "task": "text2speech", "input_modalities": ["text"], "output_modalities": ["audio"]}
    page.route(url, lambda route: route.fulfill(json={"data": [model], "object": "list"}))
    page.reload()
    page.locator("[data-feature=voice]:visible").wait_for()
    assert page.locator("#voice-field:visible").count() == 0
    page.unroute(url)
    write(page.locator("#speak-text"), "A sentence.")
    page.click("#speak")
    page.locator("#voice-field:visible").wait_for()
    assert page.locator("#voice option").all_inner_texts() == ["low", "loud"]
    page.locator("#speak-result audio").wait_for()


def hears(page: Any) -> list[str]:
    """Makes the page believe that the model reads audio. Returns the list of bodies that it sends."""
    asked: list[str] = []

    def answer(route: Any) -> None:
        asked.append(route.request.post_data_buffer.decode("latin-1"))
        events = [{"type": "transcript.text.delta", "delta": text} for text in ("three ", "one")]
        events.append({"type": "transcript.text.done", "text": "three one"})
        route.fulfill(content_type="text/event-stream", body="".join(f"data: {json.dumps(e)}\n\n" for e in events))

    page.route("**/v1/audio/transcriptions", answer)
    modalities = {"input_modalities": ["audio"], "output_modalities": ["text"]}
    serve(page, {"id": "ears", "task": "speech2text", **modalities})
    page.locator("[data-feature=speech]:visible").wait_for()
    return asked


def test_a_file_is_transcribed(speech_page: Any) -> None:
    asked = hears(speech_page)
    write(speech_page.locator("#audio-language"), "en")
    speech_page.set_input_files("#audio-file", {"name": "a.wav", "mimeType": "audio/wav", "buffer": b"RIFF...."})
    speech_page.get_by_text("three one").wait_for()
    [body] = asked
    names = re.findall(r' name="([^"]+)"', body)
    assert names == ["model", "language", "stream", "file"]
    assert "RIFF...." in body


def test_the_microphone_is_recorded_as_wav(speech_page: Any) -> None:
    asked = hears(speech_page)
    speech_page.click("#record")
    speech_page.get_by_role("button", name="Stop recording").wait_for()
    speech_page.wait_for_timeout(600)
    speech_page.click("#record")
    speech_page.get_by_text("three one").wait_for()
    at = asked[0].index("RIFF")
    with wave.open(io.BytesIO(asked[0][at:].encode("latin-1"))) as file:
        assert (file.getframerate(), file.getnchannels()) == (16_000, 1)
        assert file.getnframes() > 4_000


def test_a_second_press_while_the_browser_asks_for_the_microphone_ends_the_recording(speech_page: Any) -> None:
    hears(speech_page)
    speech_page.evaluate("""() => {
        const media = navigator.mediaDevices, ask = media.getUserMedia.bind(media);
        window.tracks = [];
        media.getUserMedia = async (what) => {
          await new Promise((answered) => (window.allow = answered));
          const stream = await ask(what);
          window.tracks.push(...stream.getTracks());
          return stream;
        };
    }""")
    speech_page.click("#record")
    speech_page.click("#record")
    speech_page.evaluate("window.allow()")
    until(speech_page, "tracks.length && tracks.every((track) => track.readyState === 'ended')")
    assert speech_page.get_attribute("#record", "aria-pressed") == "false"


def test_the_key_is_asked_for_and_nothing_is_shown_without_it(browser: Any) -> None:
    with start_process(
        "--fake_engine", "--model_name", "private-one", "--protect_models", env={"API_KEY": "voilà"}
    ) as process:
        process.wait_for("ready: private-one")
        with watched(browser, process.url) as page:
            page.get_by_text("The server needs an API key.").wait_for()
            assert "private-one" not in page.content()
            for key in ("guess", "鍵", "voilà"):
                write(page.locator("#key"), key)
                page.press("#key", "Enter")
                if key != "voilà":
                    page.get_by_text("The server refused this key.").wait_for()
            page.locator("#model option").first.wait_for(state="attached")
            assert page.input_value("#model") == "private-one"
            assert page.locator("#key").is_hidden()
            page.goto(process.url + "/docs")
            page.get_by_text("This server wants its API key.").wait_for()
            page.fill("#key", "voilà")
            page.press("#key", "Enter")
            page.locator("details").first.wait_for(state="attached")


@pytest.fixture(scope="module")
def listener() -> Iterator[Process]:
    """A server below a prefix whose model reads audio."""
    flags = ("--fake_engine", "--task", "speech2text", "--model_name", "ears", "--root_path", "/llm")
    with start_process(*flags) as process:
        process.wait_for("ready: ears")
        yield process


@pytest.fixture
def tab(browser: Any) -> Iterator[Any]:
    """An empty tab, which may use the clipboard."""
    with watched(browser, permissions=["clipboard-read", "clipboard-write"]) as page:
        yield page


def open_docs(page: Any, url: str) -> dict[str, Any]:
    """Opens the page that describes the API, and returns the document that it shows."""
    with page.expect_response("**/openapi.json") as answer:
        page.goto(url)
    document: dict[str, Any] = answer.value.json()
    return document


def open_operation(page: Any, method: str, path: str) -> Any:
    found = page.locator("details").filter(has=page.get_by_text(method, exact=True))
    found = found.filter(has=page.get_by_text(path, exact=True))
    found.locator("summary").click()
    return found


@pytest.mark.parametrize("end", ["/docs", "/llm/docs"])
def test_every_operation_is_described(tab: Any, listener: Process, end: str) -> None:
    document = open_docs(tab, listener.url + end)
    tab.locator("details").first.wait_for()
    texts_of = "(all) => all.map((one) => ['.method', '.path'].map((part) => one.querySelector(part).innerText))"
    listed = map(tuple, tab.locator("details").evaluate_all(texts_of))
    methods = ("get", "post", "delete")
    served = [(name.upper(), path) for path, item in document["paths"].items() for name in item if name in methods]
    assert sorted(listed) == sorted(served)
    assert len(served) > 50
    if end == "/docs":
        tab.evaluate("for (const one of document.querySelectorAll('details')) one.open = true")
        sync_api.expect(tab.locator("details:not(:has(button))")).to_have_count(0)
    assert document["servers"] == [{"url": "/llm"}]
    assert "`" not in tab.inner_text("#about")
    with tab.expect_response("**/docs/") as guide:
        tab.get_by_role("link", name="Documentation", exact=True).press("Enter")
    assert guide.value.status == 200
    tab.get_by_role("link", name="How do I …").press("Enter")
    tab.get_by_role("heading", name="How do I …").wait_for()
    write(tab.get_by_label("Search the documentation"), "limit memory")
    tab.keyboard.press("Enter")
    tab.get_by_role("link", name="When something is wrong: No memory").press("Enter")
    tab.get_by_role("heading", name="No memory").wait_for()
    assert tab.url == f"{listener.url}{end}/troubleshooting#no-memory"


def test_a_request_is_sent_from_the_description(tab: Any, server: Process) -> None:
    open_docs(tab, server.url + "/docs")
    operation = open_operation(tab, "POST", "/v1/chat/completions")
    operation.get_by_role("button", name="send").click()
    operation.locator("pre", has_text="[DONE]").wait_for()
    shown = operation.locator("pre").inner_text()
    assert shown.startswith("200 OK\ndata: {")


def test_operations_are_linked_found_and_take_models_that_fit(tab: Any, server: Process) -> None:
    open_docs(tab, server.url + "/docs#post-/v1/embeddings")
    linked = tab.locator("details[open]")
    assert json.loads(linked.locator("textarea").input_value())["model"] == "demo-embed"
    assert tab.locator("details .path").first.inner_text().startswith("/v1/chat/completions")
    open_operation(tab, "POST", "/v1/chat/completions")
    sync_api.expect(tab).to_have_url(re.compile("#post-/v1/chat/completions$"))
    write(tab.locator("#search"), "rerank documents")
    assert "/v1/rerank" in tab.locator("details:visible .path").all_inner_texts()
    assert "/v1/chat/completions" not in tab.locator("details:visible .path").all_inner_texts()


def test_a_request_is_copied_as_code_that_runs(tab: Any, server: Process) -> None:
    open_docs(tab, server.url + "/docs")
    operation = open_operation(tab, "POST", "/v1/embeddings")
    for name, command in (("curl", ["sh", "-c"]), ("Python", [sys.executable, "-c"])):
        operation.get_by_role("button", name=f"Copy as {name}").click()
        operation.get_by_text("Copied").wait_for()
        code = tab.evaluate("navigator.clipboard.readText()")
        done = subprocess.run([*command, code], capture_output=True, text=True, check=True)
        assert len(json.loads(done.stdout)["data"]) == 2
        operation.get_by_text("Copied").wait_for(state="detached")


def test_a_form_with_a_file_is_sent_from_the_description_below_a_prefix(tab: Any, listener: Process) -> None:
    sound = io.BytesIO()
    with wave.open(sound, "wb") as file:
        file.setparams((1, 2, 16_000, 0, "NONE", ""))
        file.writeframes(bytes(32_000))
    open_docs(tab, listener.url + "/llm/docs")
    operation = open_operation(tab, "POST", "/v1/audio/transcriptions")
    assert operation.get_by_placeholder("model", exact=True).input_value() == "ears"
    operation.locator("input[type=file]").set_input_files(
        {"name": "a.wav", "mimeType": "audio/wav", "buffer": sound.getvalue()}
    )
    with tab.expect_request("**/v1/audio/transcriptions") as asked:
        operation.get_by_role("button", name="send").click()
    assert asked.value.url == listener.url + "/llm/v1/audio/transcriptions"
    operation.locator("pre", has_text='{"text":').wait_for()
    assert operation.locator("pre").inner_text().startswith("200 OK\n")


@pytest.mark.parametrize("path", ["/", "/docs"])
def test_no_page_shows_it_in_a_frame(tab: Any, server: Process, path: str) -> None:
    outer = f'<iframe src="{path}" onload="document.title = this.contentDocument ? `shown` : `refused`"></iframe>'
    tab.route("**/outer", lambda route: route.fulfill(content_type="text/html", body=outer))
    tab.goto(server.url + "/outer")
    sync_api.expect(tab).to_have_title("refused")
