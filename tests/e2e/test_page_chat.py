"""The chat of the page in a real browser: continuing, sharing and linking conversations."""

# ruff: noqa: F811 - the fixtures of the page are arguments here

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import Process
from tests.e2e.test_page import (  # noqa: F401
    CHATS,
    answer_with,
    answered,
    ask,
    browser,
    page,
    profile,
    pytestmark,
    sent,
    server,
    texts,
)


def test_the_meter_of_the_context_shows_what_is_used(page: Any) -> None:
    assert page.locator("#hint:visible").count() == 1
    assert page.locator("#context:visible").count() == 0
    answer_with(page, {"content": "Yes."}, usage={"prompt_tokens": 40_000, "completion_tokens": 2_000})
    ask(page, "x")
    page.locator("#context:visible").wait_for()
    assert page.inner_text("#context-text") == "42,000 / 131,072"
    assert page.get_attribute("#context-meter", "aria-label") == "42,000 of 131,072 tokens of context"
    assert page.locator("#context-meter").evaluate("meter => meter.value") == pytest.approx(42_000 / 131_072)
    assert page.locator("#hint:visible").count() == 0
    page.keyboard.press("Control+Shift+O")
    page.locator(".welcome").wait_for()
    assert (page.locator("#context:visible").count(), page.locator("#hint:visible").count()) == (0, 1)


def test_an_answer_that_was_cut_off_is_continued(page: Any) -> None:
    answer_with(page, {"content": "One, two,"}, finish="length", usage={"prompt_tokens": 10, "completion_tokens": 4})
    ask(page, "Count.")
    going_on = page.get_by_role("button", name="Continue", exact=True)
    going_on.wait_for()
    answer_with(page, {"content": " three."}, finish="stop", usage={"prompt_tokens": 14, "completion_tokens": 2})
    body = sent(page, lambda: going_on.press("Enter"))
    assert body["messages"][-1] == {"role": "assistant", "content": "One, two,"}
    assert (body["continue_final_message"], body["add_generation_prompt"]) == (True, False)
    page.locator("#messages").get_by_text("One, two, three.").wait_for()
    page.get_by_text("6 completion tokens").wait_for()
    assert (page.locator(".message").count(), going_on.count(), page.inner_text("#context-text")[:2]) == (2, 0, "16")
    body = sent(page, lambda: ask(page, "Go on."))
    assert "continue_final_message" not in body
    assert texts(body)[1] == "One, two, three."


def test_a_conversation_that_is_too_long_goes_on_without_its_oldest_messages(page: Any) -> None:
    def fits_three(route: Any) -> None:
        if len(route.request.post_data_json["messages"]) <= 3:
            route.fallback()
        else:
            error = {"message": "It is too long.", "code": "context_length_exceeded"}
            route.fulfill(status=400, json={"error": error})

    for text in ("one", "two"):
        answer_with(page, {"content": f"{text}."})
        ask(page, text)
        page.locator("#messages").get_by_text(f"{text}.", exact=True).wait_for()
    page.route(CHATS, fits_three)
    ask(page, "three")
    answer_with_rest = page.get_by_role("button", name="Leave out the oldest messages")
    answer_with_rest.wait_for()
    assert page.get_by_role("button", name="Try again").count() == 0
    answer_with(page, {"content": "three."})
    page.route(CHATS, fits_three)
    answer_with_rest.press("Enter")
    page.get_by_text("The model did not get the first 2 messages.").wait_for()
    answer_with(page, {"content": "four."})
    page.route(CHATS, fits_three)
    ask(page, "four")
    page.get_by_text("The model did not get the first 4 messages.").wait_for()
    assert (page.locator(".failed").count(), page.locator(".message").count()) == (0, 8)


def test_the_model_continues_what_it_said(page: Any) -> None:
    page.click("#open-settings")
    page.locator("#settings [name=max_tokens]").press_sequentially("5")
    ask(page, "Tell me a joke.")
    page.get_by_text("Cut off at the limit of tokens.").wait_for()
    before = page.inner_text(".message.assistant .body")
    page.locator("#settings [name=max_tokens]").press("Control+a")
    page.locator("#settings [name=max_tokens]").press_sequentially("50")
    page.get_by_role("button", name="Continue", exact=True).press("Enter")
    page.get_by_text("Cut off at the limit of tokens.").wait_for(state="detached")
    page.locator("#send:enabled").wait_for()
    after = page.inner_text(".message.assistant .body")
    assert page.locator(".failed").count() == 0
    assert after.startswith(before)
    assert len(after) > len(before)


def test_a_pdf_file_is_attached_as_text(page: Any) -> None:
    answer_with(page, {"content": "I see."})
    page.route("**/v1/pdf/text", lambda route: route.fulfill(json={"text": "Hello", "pages": 1}))
    pdf = {"name": "a.pdf", "mimeType": "application/pdf", "buffer": b"%PDF-1.4 \0"}
    with page.expect_request("**/v1/pdf/text") as read:
        page.set_input_files("#file-input", pdf)
    assert b'name="file"; filename="a.pdf"' in read.value.post_data_buffer
    page.locator("#attached", has_text="a.pdf").wait_for()
    body = sent(page, lambda: ask(page, "What is this?"))
    assert texts(body)[0] == "a.pdf:\n```\nHello\n```\n\nWhat is this?"
    page.unroute("**/v1/pdf/text")
    failed = {"error": {"message": "the PDF file needs a password"}}
    page.route("**/v1/pdf/text", lambda route: route.fulfill(status=400, json=failed))
    page.set_input_files("#file-input", pdf)
    page.locator("#problem", has_text="the PDF file needs a password").wait_for()


def titles(page: Any) -> list[str]:
    found: list[str] = page.locator("#conversations .title").all_inner_texts()
    return found


def test_what_is_imported_again_makes_no_doubles(page: Any, tmp_path: Path) -> None:
    answered(page, "about the sea", {"content": "Whales sing."})
    page.get_by_text("Appearance and files").press("Enter")

    def export(name: str) -> list[Any]:
        with page.expect_download() as saved:
            page.locator("#export").press("Enter")
        saved.value.save_as(tmp_path / name)
        found: list[Any] = json.loads((tmp_path / name).read_text())
        return found

    def take(name: str, note: str) -> None:
        # Removes the message of the previous import.
        page.evaluate("document.querySelector('#toast').replaceChildren()")
        page.set_input_files("#import-file", tmp_path / name)
        page.locator("#toast", has_text=note).wait_for()

    [first] = export("first.json")
    take("first.json", "0 imported, 1 there already.")
    assert titles(page) == ["about the sea"]
    ask(page, "and the sky?")
    page.locator("#send:enabled").wait_for()
    [longer] = export("longer.json")
    take("first.json", "0 imported, 1 there already.")
    page.get_by_role("button", name="Delete about the sea").press("Enter")
    page.locator(".welcome").wait_for()
    take("first.json", "1 imported, 0 there already.")
    assert page.locator(".message").count() == 2
    take("longer.json", "1 imported, 0 there already.")  # continues the conversation that is there
    assert (page.locator(".message").count(), titles(page)) == (4, ["about the sea"])
    other = {**first, "messages": [{**first["messages"][0], "content": "about the sun"}], "tip": 0, "title": "sun"}
    assert other["id"] == longer["id"]
    (tmp_path / "other.json").write_text(json.dumps([other, {**other, "id": "../x"}]))
    take("other.json", "1 imported, 1 there already.")  # the same id with another conversation
    assert sorted(titles(page)) == ["about the sea", "sun"]


def test_a_conversation_has_an_address(page: Any, server: Process) -> None:
    answer_with(page, {"content": "Yes."})
    assert page.url == server.url + "/"
    places = []
    for text in ("one", "two"):
        page.keyboard.press("Control+Shift+O")
        ask(page, text)
        page.locator("#send:enabled").wait_for()
        places.append(page.url)
    assert len({*places}) == 2
    page.goto("about:blank")
    page.goto(places[0])
    page.locator(".message.user", has_text="one").wait_for()
    page.get_by_role("button", name="two", exact=True).press("Enter")
    page.locator(".message.user", has_text="two").wait_for()
    assert page.url == places[1]
    page.go_back()
    page.locator(".message.user", has_text="one").wait_for()
    page.go_forward()
    page.locator(".message.user", has_text="two").wait_for()
    page.keyboard.press("Control+Shift+O")
    page.locator(".welcome").wait_for()
    assert page.url == server.url + "/"
    page.goto(server.url + "/#chat=elsewhere")
    page.get_by_text("This conversation is not in this browser.").wait_for()


def test_a_conversation_is_shared(browser: Any, server: Process, tmp_path: Path) -> None:
    context = browser.new_context(permissions=["clipboard-read", "clipboard-write"])
    page = context.new_page()
    page.goto(server.url + "/")
    page.get_by_role("button", name="Tell me a joke.").wait_for()
    page.locator("#open-settings").press("Enter")
    for name in ("#copy-link", "#save-file", "#save-text"):
        assert page.locator(name).is_disabled()
    answered(page, "Why is it? 1/2", {"content": "I **see**."})
    page.locator("#copy-link").press("Enter")
    page.get_by_text("Copied.").wait_for()
    assert page.evaluate("navigator.clipboard.readText()") == page.url
    saved = {}
    for name in ("#save-file", "#save-text"):
        with page.expect_download() as file:
            page.locator(name).press("Enter")
        saved[file.value.suggested_filename] = tmp_path / file.value.suggested_filename
        file.value.save_as(tmp_path / file.value.suggested_filename)
    assert sorted(saved) == ["Why-is-it-1-2.json", "Why-is-it-1-2.md"]
    text = "# Why is it? 1/2\n\n## You\n\nWhy is it? 1/2\n\n## demo\n\nI **see**.\n"
    assert saved["Why-is-it-1-2.md"].read_text() == text
    context.close()
    other = browser.new_page()
    other.goto(server.url + "/")
    other.get_by_role("button", name="Tell me a joke.").wait_for()
    other.set_input_files("#import-file", saved["Why-is-it-1-2.json"])
    other.locator(".message.assistant strong", has_text="see").wait_for()
    other.close()


def test_a_conversation_that_is_deleted_during_its_answer_stays_deleted(page: Any) -> None:
    page.route(CHATS, lambda route: None)  # no answer
    ask(page, "about the sea")
    page.get_by_role("button", name="Delete about the sea").press("Enter")
    page.locator(".welcome").wait_for()
    page.reload()
    page.locator(".welcome").wait_for()
    assert page.locator("#conversations .title").count() == 0


DAMAGE = [{"calls": "x"}, {"calls": [{"id": "1"}]}, {"images": 5}, {"files": [{}]}, {"cost": {}}, {"tokens": [1]}]
DAMAGE += [{"reasoning": 5}, {"failed": 5}, {"parent": 0}, {"role": "x"}]


def test_damaged_conversations_are_refused_in_a_file_and_left_out_of_what_is_kept(page: Any, tmp_path: Path) -> None:
    for damage in DAMAGE:
        message = {"role": "assistant", "content": "a", "parent": -1, **damage}
        chat = {"messages": [message], "tip": 0, "title": "wrong", "settings": {"stop": 5}, "changed": 1}
        (tmp_path / "wrong.json").write_text(json.dumps([chat]))
        page.set_input_files("#import-file", tmp_path / "wrong.json")
        page.get_by_text("The file cannot be imported").wait_for()
        page.evaluate("document.getElementById('problem').hidden = true")
        put = "async (chat) => (await import(new URL('web/store.js', document.baseURI))).save({ ...chat, id: chat.id })"
        page.evaluate(put, {**chat, "id": f"id-{DAMAGE.index(damage)}"})
    page.reload()
    page.locator(".welcome").wait_for()
    assert page.locator("#conversations .title").count() == 0
    answered(page, "x", {"content": "Yes."})


def test_the_focus_stays_where_it_was_when_the_keyboard_changes_what_is_drawn(page: Any) -> None:
    def focused() -> str:
        name = "document.activeElement.ariaLabel || document.activeElement.id"
        return str(page.evaluate(name))

    answered(page, "about the sea", {"content": "Whales sing."})
    page.get_by_role("button", name="Regenerate").press("Enter")
    page.locator(".assistant .pager", has_text="2/2").wait_for()
    assert focused() == "Conversation"
    page.get_by_role("button", name="Previous version").press("Enter")
    page.locator(".assistant .pager", has_text="1/2").wait_for()
    assert focused() == "Next version"
    for key in ("Enter", "Escape"):
        page.get_by_role("button", name="Rename about the sea").press("Enter")
        page.get_by_label("Name of the conversation").press(key)
        assert focused() == "Rename about the sea"
    page.get_by_role("button", name="Settings").press("Enter")
    page.locator("#close-settings").press("Enter")
    assert focused() == "Settings"
    page.set_viewport_size({"width": 400, "height": 700})
    page.get_by_role("button", name="Show the sidebar").press("Enter")
    page.keyboard.press("Escape")
    assert focused() == "Show the sidebar"
