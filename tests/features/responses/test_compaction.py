"""POST …/responses/compact, and the effect of its items in a later request."""

from __future__ import annotations

from typing import Any

from openai.types.responses import CompactedResponse

from lean_ovms.features.responses import compaction
from lean_ovms.features.responses.api.compact import MAX_TOKENS
from lean_ovms.features.responses.items import read_input, to_messages
from lean_ovms.features.responses.request import drop_oldest_turns
from tests.api.conftest import MakeApp, post, whole
from tests.fakes import say
from tests.features.responses.rules import Json

PATH = "/v1/responses"
COMPACT = PATH + "/compact"
SUMMARY = compaction.item("It is 42.")
TALK = [
    {"role": "developer", "content": "Be brief."},
    {"role": "user", "content": "What is f(1)?"},
    {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"},
    {"type": "function_call_output", "call_id": "c1", "output": "42"},
    {"role": "assistant", "content": "42"},
    {"role": "user", "content": "And f(2)?"},
]


async def test_a_conversation_becomes_the_users_messages_and_a_summary(make_app: MakeApp) -> None:
    app, engine = await make_app(say(" It is ", "42. "))
    body = await whole(await post(app, COMPACT, {"model": "m", "input": TALK, "tools": [{"type": "function"}]}))
    CompactedResponse.model_validate({**body, "output": body["output"][-1:]})  # its type does not allow user messages
    assert body["object"] == "response.compaction"
    assert body["usage"]["output_tokens"] == 12
    *users, item = body["output"]
    assert [one["content"][0]["text"] for one in users] == ["What is f(1)?", "And f(2)?"]
    assert item == {"id": item["id"], "type": "compaction", "encrypted_content": SUMMARY["encrypted_content"]}
    asked, sampling = engine.submitted[0]
    assert sampling.max_tokens == MAX_TOKENS
    assert asked.startswith("developer:Be brief.;user:What is f(1)?;assistant:")
    assert compaction.ASK in asked
    after: Any = [*body["output"], {"role": "user", "content": "And f(3)?"}]
    await post(app, PATH, {"model": "m", "input": after})
    assert engine.submitted[1][0].startswith(
        "user:What is f(1)?\n\nAnd f(2)?;assistant:Summary of the conversation so far:\nIt is 42.;user:And f(3)?;"
    )


async def test_a_conversation_that_is_too_long_is_summarized_without_its_beginning(make_app: MakeApp) -> None:
    app, engine = await make_app(say("x"))
    talk = [{"role": role, "content": f"{n}" * 1500} for n in (1, 2, 3) for role in ("user", "assistant")]
    body = await whole(await post(app, COMPACT, {"model": "m", "input": talk}))
    assert [one["type"] for one in body["output"]] == ["compaction"]
    assert "1" not in engine.submitted[-1][0]
    assert "3" in engine.submitted[-1][0]


async def test_a_summary_is_within_the_servers_limit(make_app: MakeApp) -> None:
    app, engine = await make_app(say("x"), max_tokens_limit=50)
    for given in ({}, {"max_output_tokens": 20}):
        assert (await post(app, COMPACT, {"model": "m", "input": "hi", **given})).status == 200
    assert [sampling.max_tokens for _, sampling in engine.submitted] == [50, 20]


async def test_a_model_that_writes_nothing_gives_no_summary(make_app: MakeApp) -> None:
    app, _ = await make_app(say(" "))
    response = await post(app, COMPACT, {"model": "m", "input": "hi"})
    assert response.status == 500
    assert "did not write a summary" in (await whole(response))["error"]["message"]


async def test_a_summary_of_another_server_is_left_out_with_a_warning(make_app: MakeApp) -> None:
    foreign = {"type": "compaction", "encrypted_content": "gAAAAB"}
    items = [*TALK[1:3], foreign, {"role": "user", "content": "and?"}]
    assert to_messages(read_input(items)) == to_messages(read_input([*TALK[1:3], items[-1]]))
    app, _ = await make_app(lambda *_: say("x"))
    for path, field in (("/v1/responses", "input"), ("/v1/conversations", "items")):
        response = await post(app, path, {"model": "m", field: items})
        assert response.status == 200
        assert f"{field}[2] (compaction) were left out" in dict(response.headers)["Warning"]


async def test_items_that_have_a_role_and_no_content_are_no_messages(make_app: MakeApp) -> None:
    """OpenAI's additional_tools have a role: https://platform.openai.com/docs/api-reference/responses/create"""
    items = [TALK[1], {"type": "web_search_call", "role": "user"}, {"type": "additional_tools", "role": "user"}]
    app, _ = await make_app(lambda *_: say("All."))
    found = await whole(await post(app, COMPACT, {"model": "m", "input": items}))
    assert [item["type"] for item in found["output"]] == ["message", "compaction"]
    read = read_input(items)
    assert drop_oldest_turns(read) == read


def test_a_summary_replaces_what_is_before_it_but_the_users_messages() -> None:
    older = compaction.item("old")
    picture = {"role": "user", "content": [{"type": "input_image", "image_url": "data:,x"}]}
    items = read_input([older, *TALK, picture, SUMMARY, TALK[2], TALK[3]])
    messages = to_messages(items)
    assert [message["role"] for message in messages] == ["developer", "user", "assistant", "tool"]
    assert [part["type"] for part in messages[1]["content"]] == ["text", "text", "image_url"]
    assert messages[2]["content"] == compaction.text(SUMMARY)
    assert messages[2]["tool_calls"][0]["id"] == "c1"


def test_only_the_last_of_the_users_messages_are_kept_where_all_are_long() -> None:
    items: list[Json] = read_input([{"role": "user", "content": text} for text in ("aaa", "bb", "c")])
    assert [one["content"][0]["text"] for one in compaction.kept(items, 3)] == ["bb", "c"]
    assert len(compaction.kept(items, 6)) == 3
