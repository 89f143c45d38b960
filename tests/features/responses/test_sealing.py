"""Sealed reasoning: clients without stored responses send it back, and only the server can read it."""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from typing import Any

import orjson
import pytest
from cryptography.fernet import Fernet

from lean_ovms.api.app import App
from lean_ovms.api.services import INLINE_BYTES
from lean_ovms.config import Config
from lean_ovms.errors import StartError, WrongOptions
from lean_ovms.features.responses.service import ResponseService
from tests.api.conftest import MakeApp, get, post, warnings_of, whole
from tests.fakes import FakeEngine, say
from tests.features.responses.rules import PATH, Json, ask, respond, streamed

TEMPLATE = "{% for m in messages %}{{ m.role }}:{{ m.reasoning_content }}:{{ m.content }};{% endfor %}"
KEPT: Json = {"include": ["reasoning.encrypted_content"]}
ASK: Json = {"store": False, **KEPT}
DAMAGED = "it is damaged, or was encrypted with another key"
USER: Json = {"role": "user", "content": "hi"}


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    path = tmp_path / "keys"
    path.write_bytes(Fernet.generate_key() + b"\n")
    return path


async def thinking(make_app: MakeApp, **options: Any) -> tuple[App, FakeEngine]:
    """Returns an app whose model thinks "hm, ä" before it says "Yes."."""
    script = lambda *_: say("<think>", "hm, ", "ä", "</think>", "Yes.")  # noqa: E731
    return await make_app(script, reasoning_parser="qwen3", chat_template=TEMPLATE, **options)


async def unread(app: App, items: list[Json]) -> str:
    """Returns the only Warning of the answer to these items."""
    response = await post(app, PATH, ask(items, **ASK))
    assert response.status == 200, response.body
    [warning] = warnings_of(response)
    return warning


async def test_the_model_gets_its_reasoning_back_from_sealed_items_alone(make_app: MakeApp) -> None:
    app, engine = await thinking(make_app)
    first = await respond(app, **ASK)
    thought, message = first["output"]
    assert thought["summary"] == [{"type": "summary_text", "text": "hm, ä"}]
    sealed = thought["encrypted_content"]
    assert "hm, ä" not in sealed  # base64 contains no comma, but may contain the letters by chance
    # Without id, summary and status, as the Agents SDK and Codex send items that are not stored.
    bare = {"type": "reasoning", "summary": [], "encrypted_content": sealed}
    await respond(app, [USER, bare, message, USER], **ASK)
    assert engine.submitted[-1][0] == "user::hi;assistant:hm, ä:Yes.;user::hi;"
    events = await streamed(await post(app, PATH, ask(**ASK, stream=True)))
    added, done, *_ = [e["item"] for e in events if e.get("item") and e["output_index"] == 0]
    assert "encrypted_content" not in added
    assert events[-1]["response"]["output"][0] == done
    assert sealed != done["encrypted_content"], "equal thoughts do not look equal"
    await respond(app, [USER, done, USER], **ASK)
    assert engine.submitted[-1][0].count("hm, ä") == 1
    assert "encrypted_content" not in (await respond(app, store=False))["output"][0]


async def test_an_agent_goes_on_without_wrong_foreign_and_cut_content(make_app: MakeApp) -> None:
    """An agent sends encrypted content with each request, also after the server has restarted with another key."""
    (app, engine), (other, _) = await thinking(make_app), await thinking(make_app)
    item = (await respond(app, **ASK))["output"][0]
    sealed = item["encrypted_content"]
    for content in (
        "x",
        "ä",
        sealed[:-4],
        sealed[4:],
        f"{sealed[:40]}{'AB'[sealed[40] == 'A']}{sealed[41:]}",
        "=" * 100_000,
    ):
        wrong = {**item, "encrypted_content": content}
        assert await unread(app, [USER, wrong]) == f"the encrypted content of input[1] was left out: {DAMAGED}"
        assert engine.submitted[-1][0] == "user::hi;assistant:hm, ä:;", "the summary has it, too"
    long = "more than 2097152 characters"
    assert long in await unread(app, [USER, {**item, "encrypted_content": sealed + "A" * (1 << 21)}])
    assert DAMAGED in await unread(other, [USER, item])
    assert "of input[1] and 1 more was left out" in await unread(other, [USER, item, USER, item])
    response = await post(app, PATH, ask([USER, {**item, "encrypted_content": 1}], **ASK))
    assert "must be a string" in (await whole(response))["error"]["message"]
    for nothing in (None, ""):
        await respond(app, [USER, {**item, "encrypted_content": nothing}], **ASK)


async def test_conversations_take_sealed_items_and_stored_turns_go_on(make_app: MakeApp) -> None:
    app, engine = await thinking(make_app)
    first = await respond(app, **KEPT)
    thought = first["output"][0]
    await respond(app, "more", previous_response_id=first["id"], **KEPT)
    assert engine.submitted[-1][0].count("hm, ä") == 1
    items = [USER, {**thought, "summary": []}, USER]
    made = await whole(await post(app, "/v1/conversations", {"items": items}))
    await respond(app, "more", conversation=made["id"], **KEPT)
    assert engine.submitted[-1][0].count("hm, ä") == 1
    listed = await get(app, f"/v1/conversations/{made['id']}/items")
    assert listed.status == 200
    wrong = {"items": [USER, {**thought, "encrypted_content": "x"}]}
    made = await post(app, "/v1/conversations", wrong)
    added = await post(app, f"/v1/conversations/{(await whole(made))['id']}/items", wrong)
    for response in (made, added):
        assert f"the encrypted content of items[1] was left out: {DAMAGED}" in dict(response.headers)["Warning"]


@pytest.mark.parametrize("path", [PATH, "/v1/conversations"])
async def test_a_large_first_body_makes_no_second_service(
    make_app: MakeApp, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    made, make = [], ResponseService.__init__

    def record(service: ResponseService, config: Config) -> None:
        made.append(threading.current_thread())
        make(service, config)

    monkeypatch.setattr(ResponseService, "__init__", record)
    app, _ = await thinking(make_app)
    body = ask([USER], **ASK) if path == PATH else {"items": [USER]}
    assert (await post(app, path, orjson.dumps(body) + b" " * INLINE_BYTES)).status == 200
    assert made == [threading.current_thread()], "not in the thread that parses"


async def test_a_key_file_outlives_the_server_and_keys_can_be_replaced(make_app: MakeApp, key_file: Path) -> None:
    old = {"reasoning_key_file": str(key_file)}
    app, _ = await thinking(make_app, **old)
    await app.open()
    thought = (await respond(app, **ASK))["output"][0]
    key_file.write_bytes(Fernet.generate_key() + b"\n" + key_file.read_bytes())
    after, engine = await thinking(make_app, **old)
    await respond(after, [USER, {**thought, "summary": []}, USER], **ASK)
    assert engine.submitted[-1][0].count("hm, ä") == 1
    assert DAMAGED in await unread(app, [USER, (await respond(after, **ASK))["output"][0]])


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (None, "No such file"),
        (b"", "must contain keys"),
        (b"secret\n", "must contain keys"),
        (b"\xff" * 44, "must contain keys"),
    ],
)
async def test_a_wrong_key_file_stops_the_start(
    make_app: MakeApp, tmp_path: Path, content: bytes | None, says: str
) -> None:
    path = tmp_path / "keys"
    if content is not None:
        path.write_bytes(content)
    app, _ = await thinking(make_app, reasoning_key_file=str(path))
    with pytest.raises(WrongOptions, match=rf"^--reasoning_key_file \S+: .*{says}") as caught:
        await app.open()
    assert "secret" not in str(caught.value)


async def test_without_the_package_responses_say_so_and_sealed_items_are_read_by_their_summary(
    make_app: MakeApp, key_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "cryptography.fernet", None)
    app, engine = await thinking(make_app)
    response = await post(app, PATH, ask(**ASK))
    assert any("cryptography" in text for text in warnings_of(response))
    thought = (await whole(response))["output"][0]
    assert "encrypted_content" not in thought
    assert thought["summary"]
    response = await post(app, PATH, ask([USER, {**thought, "encrypted_content": "x"}], **ASK))
    assert "input[1] was left out: encrypted reasoning needs cryptography" in str(response.headers)
    assert engine.submitted[-1][0] == "user::hi;assistant:hm, ä:;"
    app, _ = await thinking(make_app, reasoning_key_file=str(key_file))
    with pytest.raises(StartError, match=r"^--reasoning_key_file needs cryptography"):
        await app.open()
