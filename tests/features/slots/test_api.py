"""POST /slots/{id} of llama.cpp's server: its answers and errors, and which slot a request names."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from lean_ovms.errors import BadRequest
from lean_ovms.types import Request
from tests.api.conftest import MakeApp, post, whole
from tests.fakes import say


async def act(app: Any, slot: str, action: str, body: Any = None) -> tuple[int, Any]:
    path = f"/slots/{slot}"
    data = {"body": b""} if body is None else {"body": orjson.dumps(body)}
    response = await app.handle(Request("POST", path, f"action={action}", {"content-type": "application/json"}, **data))
    return response.status, await whole(response)


async def test_the_answers_are_those_of_llama_cpp(make_app: MakeApp) -> None:
    app, engine = await make_app(slot_save_path="x")
    file = {"filename": "a b.bin"}
    assert await act(app, "1", "save", file) == (
        200,
        {"id_slot": 1, **file, "n_saved": 64, "n_written": 1000, "timings": {"save_ms": 1.5}},
    )
    assert await act(app, "0", "restore", {**file, "model": "m"}) == (
        200,
        {"id_slot": 0, **file, "n_restored": 64, "n_read": 1000, "timings": {"restore_ms": 1.5}},
    )
    assert await act(app, "2", "erase") == (200, {"id_slot": 2, "n_erased": 64})
    assert engine.slot_actions == [("save", 1, "a b.bin"), ("restore", 0, "a b.bin"), ("erase", 2, "")]


NAMES = ["", None, ".", "..", ".a", "a/b", "/etc/passwd", "a\\b", "a\nb", "a\0", "x" * 201, 5]


@pytest.mark.parametrize(
    ("slot", "action", "name", "param"),
    [
        *(("0", action, name, "filename") for action in ("save", "restore") for name in NAMES),
        *((slot, "save", "a", "id_slot") for slot in ("x", "-1", "4096", "9" * 5000, "²")),
        *(("0", action, "a", "action") for action in ("", "load")),
    ],
)
async def test_a_slot_an_action_or_a_name_that_cannot_be_is_refused(
    slot: str, action: str, name: Any, param: str, make_app: MakeApp
) -> None:
    app, engine = await make_app(slot_save_path="x")
    status, body = await act(app, slot, action, {"filename": name})
    assert (status, body["error"]["param"]) == (400, param)
    assert not engine.slot_actions


async def test_without_the_option_it_is_not_supported_as_in_llama_cpp(make_app: MakeApp) -> None:
    app, engine = await make_app()
    status, body = await act(app, "0", "save", {"filename": "a"})
    assert (status, body["error"]["type"], body["error"]["code"]) == (501, "not_supported_error", "not_supported")
    assert "--slot_save_path" in body["error"]["message"]
    assert not engine.slot_actions


async def test_what_the_engine_refuses_reaches_the_client(make_app: MakeApp) -> None:
    app, engine = await make_app(slot_save_path="x")
    engine.refusal = BadRequest("damaged", param="filename")
    status, body = await act(app, "0", "restore", {"filename": "a"})
    assert (status, body["error"]["message"]) == (400, "damaged")


async def test_requests_name_a_slot(make_app: MakeApp) -> None:
    app, engine = await make_app(lambda prompt, sampling: say("a"))
    chat = {"messages": [{"role": "user", "content": "hi"}]}
    for path, body in (
        ("/v1/chat/completions", chat),
        ("/v1/completions", {"prompt": "a"}),
        ("/completion", {"prompt": "a"}),
    ):
        for slot in (3, -1, None):
            answer = await whole(await post(app, path, {**body, "id_slot": slot}))
            assert engine.submitted[-1][1].id_slot == max(0, slot or 0)
            if path == "/completion":
                assert answer["id_slot"] == max(0, slot or 0)
        assert (await post(app, path, {**body, "id_slot": 5000})).status == 400
