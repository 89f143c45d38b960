"""Tools that the page runs for a model, and models that it pulls and deletes, in a real browser."""

# ruff: noqa: F811 - the fixtures of the page are arguments here

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.e2e.conftest import Process
from tests.e2e.test_page import answer_with, ask, browser, page, profile, pytestmark, sent, server, texts, write  # noqa: F401

TOOL = {"name": "add", "description": "Adds.", "input_schema": {"type": "object"}, "annotations": None}
SERVERS = {
    "data": [
        {"name": "calc", "tools": [TOOL], "prompts": [], "resources": [], "error": None},
        {"name": "broken", "tools": [], "prompts": [], "resources": [], "error": "no answer"},
    ]
}
ACTIONS = {"tool_servers": "v1/tool_servers", "call_tool": "v1/tool_servers/call"}


def call(name: str, place: int = 0, **arguments: Any) -> dict[str, Any]:
    return {"index": place, "id": f"c{place}", "function": {"name": name, "arguments": json.dumps(arguments)}}


def offer(page: Any, actions: dict[str, str]) -> None:
    """Opens the page of a server with these abilities."""
    page.route("**/web/actions", lambda route: route.fulfill(json=actions))
    page.reload()
    page.locator("#model option").first.wait_for(state="attached")


def allow(page: Any, name: str) -> None:
    """Offers the tools to the model, with the keyboard."""
    if page.locator("#settings").is_hidden():
        page.locator("#open-settings").press("Enter")
    page.get_by_label(name, exact=True).press("Space")
    assert page.get_by_label(name, exact=True).is_checked()


def results(body: dict[str, Any]) -> list[str]:
    return [one["content"] for one in body["messages"] if one["role"] == "tool"]


def test_a_tool_of_the_page_runs_after_it_is_allowed(page: Any) -> None:
    allow(page, "Tools of this page")
    answer_with(page, {"tool_calls": [call("calculate", expression="2 * (3 + sqrt(16)) ^ 2")]})
    body = sent(page, lambda: ask(page, "How much is it?"))
    names = [one["function"]["name"] for one in body["tools"]]
    assert names == ["calculate", "current_time"]
    box = page.locator("details.call")
    run = box.get_by_role("button", name="Run")
    run.wait_for()
    assert box.evaluate("box => box.open")
    answer_with(page, {"content": "It is 98."})
    body = sent(page, lambda: run.press("Enter"))
    assert results(body) == ["98"]
    page.locator("#messages").get_by_text("It is 98.").wait_for()
    assert (box.evaluate("box => box.open"), box.locator(".call-state").inner_text()) == (False, "Done")
    assert page.locator(".message").count() == 3  # the result is shown within its call
    box.locator("summary").press("Enter")
    assert box.locator("pre").all_inner_texts() == ['{\n  "expression": "2 * (3 + sqrt(16)) ^ 2"\n}', "98"]
    page.reload()
    page.locator("#messages").get_by_text("It is 98.").wait_for()
    assert box.locator(".call-state").inner_text() == "Done"


def test_calls_are_declined_and_mistakes_are_told_to_the_model(page: Any) -> None:
    allow(page, "Tools of this page")
    answer_with(page, {"tool_calls": [call("current_time"), call("calculate", 1, expression="2 +"), call("other", 2)]})
    ask(page, "x")
    page.get_by_role("group", name="May current_time be called?").get_by_role("button", name="Decline").press("Enter")
    page.get_by_text("Declined", exact=True).wait_for()
    page.get_by_role("group", name="May calculate be called?").get_by_role("button", name="Run").press("Enter")
    answer_with(page, {"content": "Sorry."})
    write(page.get_by_label("Result of other"), "7")
    body = sent(page, lambda: page.get_by_role("button", name="Send the result").press("Enter"))
    assert results(body) == ["The user declined this call.", "Error: the end is no number", "7"]
    page.locator("#messages").get_by_text("Sorry.").wait_for()


def test_tools_of_servers_run_in_turns_up_to_a_limit(page: Any) -> None:
    offer(page, ACTIONS)
    page.route("**/v1/tool_servers", lambda route: route.fulfill(json=SERVERS))
    calls: list[Any] = []

    def run(route: Any) -> None:
        calls.append(route.request.post_data_json)
        route.fulfill(json={"output": str(len(calls)), "is_error": False})

    page.route("**/v1/tool_servers/call", run)
    page.locator("#open-settings").press("Enter")
    page.get_by_text("broken: no answer").wait_for()
    allow(page, "calc")
    answer_with(page, {"tool_calls": [call("calc__add", a=1)]})
    body = sent(page, lambda: ask(page, "x"))
    function = {"name": "calc__add", "description": "Adds.", "parameters": {"type": "object"}}
    assert body["tools"] == [{"type": "function", "function": function}]
    for place in range(10):
        body = sent(page, lambda: page.get_by_role("button", name="Run").press("Enter"))
        assert len(calls) == place + 1
        assert body.get("tool_choice") == (None if place < 9 else "none")
        page.locator("#send:enabled").wait_for()
    assert calls[0] == {"server": "calc", "name": "add", "arguments": {"a": 1}}
    assert results(body) == [str(place + 1) for place in range(10)]
    page.get_by_text("The limit of calls was reached.").wait_for()


def test_a_call_that_takes_long_is_stopped(page: Any) -> None:
    offer(page, ACTIONS)
    page.route("**/v1/tool_servers", lambda route: route.fulfill(json=SERVERS))
    page.route("**/v1/tool_servers/call", lambda route: None)  # never answered
    allow(page, "calc")
    answer_with(page, {"tool_calls": [call("calc__add", a=1)]})
    ask(page, "x")
    page.get_by_role("button", name="Run").press("Enter")
    page.locator("#stop:enabled").wait_for()
    assert page.inner_text(".call-state") == "Working…"
    page.keyboard.press("Escape")
    page.get_by_role("button", name="Run").wait_for()
    assert page.inner_text(".call-state") == ""
    assert page.locator("#send").is_enabled()


PROMPTS = [
    {"name": "greet", "description": "A greeting.", "arguments": []},
    {"name": "explain", "description": None, "arguments": [{"name": "topic", "description": None, "required": True}]},
]
NOTES = [{"uri": "notes://today", "name": "today", "description": None, "mime_type": "text/plain"}]


def test_prompts_and_resources_get_into_the_message(page: Any) -> None:
    reads = {"read_prompt": "v1/tool_servers/prompt", "read_resource": "v1/tool_servers/resource"}
    assert page.locator("#offers").is_hidden()
    offer(page, ACTIONS | reads)
    found = {"data": [SERVERS["data"][1], {**SERVERS["data"][0], "prompts": PROMPTS, "resources": NOTES}]}
    page.route("**/v1/tool_servers", lambda route: route.fulfill(json=found))
    said = {"messages": [{"role": "user", "content": "Explain cats."}]}
    page.route("**/v1/tool_servers/prompt", lambda route: route.fulfill(json=said))
    page.route("**/v1/tool_servers/resource", lambda route: route.fulfill(json={"text": "Feed the cat."}))
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()

    page.locator("#offers").press("Enter")
    page.get_by_role("button", name="explain").press("Enter")
    assert axe.run(page).response["violations"] == []
    page.keyboard.press("Enter")  # without the topic
    page.keyboard.type("cats")
    with page.expect_request("**/v1/tool_servers/prompt") as asked:
        page.keyboard.press("Enter")
    assert asked.value.post_data_json == {"server": "calc", "name": "explain", "arguments": {"topic": "cats"}}
    page.locator("#offers-dialog").wait_for(state="hidden")
    assert page.input_value("#text") == "Explain cats."
    assert page.evaluate("document.activeElement.id") == "text"

    page.locator("#offers").press("Enter")
    with page.expect_request("**/v1/tool_servers/resource") as asked:
        page.get_by_role("button", name="today").press("Enter")
    assert asked.value.post_data_json == {"server": "calc", "uri": "notes://today"}
    page.locator("#attached", has_text="today").wait_for()
    page.locator("#offers").press("Enter")
    page.get_by_role("button", name="greet").wait_for()
    page.keyboard.press("Escape")
    page.locator("#offers-dialog").wait_for(state="hidden")
    answer_with(page, {"content": "Yes."})
    body = sent(page, lambda: page.locator("#text").press("Enter"))
    assert texts(body)[0] == "today:\n```\nFeed the cat.\n```\n\nExplain cats."


def test_expressions_are_computed_and_not_run(page: Any) -> None:
    cases = {"1 + 2 * 3": 7, "-2 ^ 2": -4, "2 ** 3 ** 2": 512, "max(1, 2, sin(0))": 2, "7 % 4 - .5e1": -2, "(1)": 1}
    found = page.evaluate(
        "async (texts) => (await import('./web/calculate.js')).calculate && Promise.all(texts.map(async (text) =>"
        " { try { return (await import('./web/calculate.js')).calculate(text); } catch (e) { return e.message; } }))",
        [*cases, "alert(1)", "1 1", "constructor", "(2", "2;3", "((" * 600],
    )
    assert found[: len(cases)] == [*cases.values()]
    assert found[len(cases) :] == [
        "alert is no number",
        "1 is too much",
        "constructor is no number",
        ") is missing before the end",
        "; is no part of an expression",
        "the expression is too long",
    ]


PULLS = {"pull": "api/pull", "delete": "api/delete"}


def test_a_model_is_pulled_and_deleted(page: Any) -> None:
    offer(page, PULLS)
    page.locator("#tab-server").press("Enter")
    page.locator("#models", has_text="demo-embed").wait_for()
    # This server does not have the action.
    assert page.get_by_role("button", name="Unload demo", exact=True).count() == 0
    lines = [
        {"status": "pulling manifest"},
        {"status": "pulling abc", "digest": "sha256:abc", "total": 2e6, "completed": 1e6},
        {"status": "success"},
    ]
    body = "".join(json.dumps(line) + "\n" for line in lines)
    page.route("**/api/pull", lambda route: route.fulfill(content_type="application/x-ndjson", body=body))
    page.locator("#pull-name").press_sequentially("org/model")
    with page.expect_request("**/api/pull") as asked:
        page.keyboard.press("Enter")
    assert asked.value.post_data_json == {"model": "org/model"}
    page.get_by_text("org/model is there.").wait_for()
    page.unroute("**/api/pull")
    failed = json.dumps({"error": "there is no such model"}) + "\n"
    page.route("**/api/pull", lambda route: route.fulfill(content_type="application/x-ndjson", body=failed))
    page.locator("#pull-name").press_sequentially("org/other")
    page.locator("#pull").press("Enter")
    page.locator("#pull-state", has_text="there is no such model").wait_for()
    assert page.input_value("#pull-name") == "org/other"

    page.route("**/api/delete", lambda route: route.fulfill(body=""))
    delete = page.get_by_role("button", name="Delete demo-embed")
    delete.press("Enter")
    assert delete.inner_text() == "Really delete?"
    with page.expect_request("**/api/delete") as asked:
        page.keyboard.press("Enter")
    assert (asked.value.method, asked.value.post_data_json) == ("DELETE", {"model": "demo-embed"})


def test_a_pull_is_stopped(page: Any) -> None:
    offer(page, PULLS)
    page.locator("#tab-server").press("Enter")
    page.route("**/api/pull", lambda route: None)  # never answered
    page.locator("#pull-name").press_sequentially("org/model")
    page.keyboard.press("Enter")
    page.locator("#pull-stop:enabled").press("Enter")
    page.locator("#pull:enabled").wait_for()
    assert page.inner_text("#pull-state") == ""


@pytest.mark.parametrize("actions", [{}, {"api": "docs"}])
def test_the_page_offers_only_what_the_server_has(page: Any, server: Process, actions: dict[str, str]) -> None:
    offer(page, actions)
    links = page.locator("nav a:visible").all_inner_texts()
    assert links == ["API"] * len(actions)
    page.locator("#tab-server").press("Enter")
    page.locator("#models", has_text="demo-embed").wait_for()
    assert page.locator("#pull-section").is_hidden()
    assert page.locator("#models button").count() == 0
