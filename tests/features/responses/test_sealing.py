"""Sealed reasoning: clients that have nothing stored send it back, and only the server reads it."""

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
from tests.api.conftest import MakeApp, get, post, whole
from tests.fakes import FakeEngine, say
from tests.features.responses.rules import PATH, Json, ask, respond, streamed

TEMPLATE = "{% for m in messages %}{{ m.role }}:{{ m.reasoning_content }}:{{ m.content }};{% endfor %}"
KEPT: Json = {"include": ["reasoning.encrypted_content"]}
ASK: Json = {"store": False, **KEPT}
USER: Json = {"role": "user", "content": "hi"}


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    path = tmp_path / "keys"
    path.write_bytes(Fernet.generate_key() + b"\n")
    return path


async def thinking(make_app: MakeApp, **options: Any) -> tuple[App, FakeEngine]:
    """An app whose model thinks "hm, ä" before it says "Yes."."""
    script = lambda *_: say("<think>", "hm, ", "ä", "</think>", "Yes.")  # noqa: E731
    return await make_app(script, reasoning_parser="qwen3", chat_template=TEMPLATE, **options)


async def refused(app: App, item: Json, path: str = PATH) -> Json:
    name = "input" if path == PATH else "items"
    response = await post(app, path, ask([USER, item], **ASK) if path == PATH else {name: [USER, item]})
    assert response.status == 400, response.body
    error: Json = (await whole(response))["error"]
    assert error["type"] == "invalid_request_error"
    assert error["param"] == f"{name}[1].encrypted_content"
    return error


async def test_the_model_gets_its_reasoning_back_from_sealed_items_alone(make_app: MakeApp) -> None:
    app, engine = await thinking(make_app)
    first = await respond(app, **ASK)
    thought, message = first["output"]
    assert thought["summary"] == [{"type": "summary_text", "text": "hm, ä"}]
    sealed = thought["encrypted_content"]
    assert "hm, ä" not in sealed  # base64 has no comma, but letters by chance
    # No id, no summary and no status, as the Agents SDK and Codex send items that are not stored.
    bare = {"type": "reasoning", "summary": [], "encrypted_content": sealed}
    await respond(app, [USER, bare, message, USER], **ASK)
    assert engine.submitted[-1][0] == "user::hi;assistant:hm, ä:Yes.;user::hi;"
    again = (await respond(app, **ASK))["output"][0]["encrypted_content"]
    assert sealed != again, "equal thoughts do not look equal"


async def test_a_stream_has_it_in_the_finished_item_and_others_have_none(make_app: MakeApp) -> None:
    app, engine = await thinking(make_app)
    events = await streamed(await post(app, PATH, ask(**ASK, stream=True)))
    final = events[-1]["response"]
    [added] = [e["item"] for e in events if e["type"] == "response.output_item.added" and e["output_index"] == 0]
    [done] = [e["item"] for e in events if e["type"] == "response.output_item.done" and e["output_index"] == 0]
    assert "encrypted_content" not in added
    assert final["output"][0] == done
    await respond(app, [USER, done, USER], **ASK)
    assert engine.submitted[-1][0].count("hm, ä") == 1
    assert "encrypted_content" not in (await respond(app, store=False))["output"][0]


async def test_wrong_foreign_and_cut_content_is_refused(make_app: MakeApp) -> None:
    (app, _), (other, _) = await thinking(make_app), await thinking(make_app)
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
        error = await refused(app, {**item, "encrypted_content": content})
        assert error["code"] == "invalid_encrypted_content"
    assert (await refused(other, item))["code"] == "invalid_encrypted_content"
    assert "must be a string" in (await refused(app, {**item, "encrypted_content": 1}))["message"]
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
    error = await refused(app, {**thought, "encrypted_content": "x"}, "/v1/conversations")
    assert error["code"] == "invalid_encrypted_content"


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
    assert (await refused(app, (await respond(after, **ASK))["output"][0]))["code"] == "invalid_encrypted_content"


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (None, "No such file"),
        (b"", "must hold keys"),
        (b"secret\n", "must hold keys"),
        (b"\xff" * 44, "must hold keys"),
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


async def test_without_the_package_responses_say_so_and_sealed_items_are_refused(
    make_app: MakeApp, key_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "cryptography.fernet", None)
    app, _ = await thinking(make_app)
    response = await post(app, PATH, ask(**ASK))
    assert any(name == "Warning" and "cryptography" in value for name, value in response.headers)
    thought = (await whole(response))["output"][0]
    assert "encrypted_content" not in thought
    assert thought["summary"]
    response = await post(app, PATH, ask([USER, {**thought, "encrypted_content": "x"}], **ASK))
    assert (response.status, (await whole(response))["error"]["code"]) == (501, "not_installed")
    app, _ = await thinking(make_app, reasoning_key_file=str(key_file))
    with pytest.raises(StartError, match=r"^--reasoning_key_file needs cryptography"):
        await app.open()
