"""A request finds only cached prompts of its own key, in every API."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from lean_ovms.observability.records import scoped_salt
from tests.api.conftest import MakeApp, post, whole
from tests.fakes import say
from tests.features.named_keys.files import written

HELLO = [{"role": "user", "content": "hi"}]
KEYS: dict[str, Any] = {"alice": {}, "bob": {}, "carol": {"cache_scope": "team"}, "dave": {"cache_scope": "team"}}
BODIES: dict[str, dict[str, Any]] = {
    "/v3/chat/completions": {"messages": HELLO},
    "/v1/chat/completions": {"messages": HELLO, "n": 2},
    "/v1/chat/completions/batch": {"messages": [HELLO, HELLO]},
    "/v1/completions": {"prompt": ["hi", "ho"]},
    "/v1/responses": {"input": "hi"},
    "/v1/messages": {"messages": HELLO, "max_tokens": 3},
    "/api/chat": {"messages": HELLO, "stream": False},
    "/api/generate": {"prompt": "hi", "stream": False},
    "/v2/chat": {"messages": HELLO},
    "/completion": {"prompt": "hi"},
    "/inference/v1/generate": {"token_ids": [65, 66], "sampling_params": {"max_tokens": 1}},
}


def salt_of(key: str, own: str = "") -> str:
    return scoped_salt(f"scope:{KEYS[key]['cache_scope']}" if KEYS[key] else f"key:{key}", own)


@pytest.mark.parametrize("path", BODIES)
async def test_a_keys_prompts_are_its_own_in_every_api(make_app: MakeApp, tmp_path: Path, path: str) -> None:
    app, engine = await make_app(
        lambda prompt, sampling: say("x", sequences=sampling.n), capable=True, api_key_file=written(tmp_path, KEYS)
    )
    found: dict[str, set[str]] = {}
    for key in KEYS:
        engine.submitted.clear()
        response = await post(app, path, {"model": "m", **BODIES[path]}, authorization=f"Bearer sk-{key}")
        assert response.status == 200, await whole(response)
        await whole(response)
        assert engine.submitted
        found[key] = {sampling.cache_salt for _, sampling in engine.submitted}
    assert found == {key: {salt_of(key)} for key in KEYS}


async def test_a_salt_of_a_request_separates_further_and_reaches_no_other_key(
    make_app: MakeApp, tmp_path: Path
) -> None:
    app, engine = await make_app(lambda *_: say("x"), capable=True, api_key_file=written(tmp_path, KEYS))
    salts = ["", "s", *sorted({salt_of(key) for key in KEYS}), "key:bob", "scope:team", "\n"]
    for key in ("alice", "bob", "carol"):
        for salt in salts:
            body = {"model": "m", "messages": HELLO, **({"cache_salt": salt} if salt else {})}
            await whole(await post(app, "/v1/chat/completions", body, authorization=f"Bearer sk-{key}"))
    found = [sampling.cache_salt for _, sampling in engine.submitted]
    assert len(set(found)) == len(found) == 3 * len(salts)


@pytest.mark.parametrize("options", [{}, {"api_key": "secret"}])
async def test_without_named_keys_all_share(make_app: MakeApp, options: dict[str, Any]) -> None:
    app, engine = await make_app(lambda *_: say("x"), capable=True, **options)
    for fields in ({}, {"cache_salt": "s"}):
        body = {"model": "m", "messages": HELLO, **fields}
        await whole(await post(app, "/v1/chat/completions", body, authorization="Bearer secret"))
    assert [sampling.cache_salt for _, sampling in engine.submitted] == ["", "s"]


async def test_a_salt_that_the_engine_cannot_honour_gets_a_warning(make_app: MakeApp) -> None:
    for capable, caching, warned in ((False, True, True), (True, True, False), (False, False, False)):
        app, _ = await make_app(lambda *_: say("x"), capable=capable, enable_prefix_caching=caching)
        response = await post(app, "/v1/chat/completions", {"model": "m", "messages": HELLO, "cache_salt": "s"})
        await response.aclose()
        assert ("cache_salt has no effect" in dict(response.headers).get("Warning", "")) is warned


async def test_what_is_computed_ahead_is_there_for_each_scope_that_may_use_the_model(
    make_app: MakeApp, tmp_path: Path
) -> None:
    file = tmp_path / "prewarm.json"
    file.write_text("[]")
    keys = KEYS | {"eve": {"models": ["other"]}, "ops": {"roles": ["admin"]}}
    app, engine = await make_app(
        lambda *_: say("x"), capable=True, api_key_file=written(tmp_path, keys), prewarm=str(file)
    )
    body = {"model": "m", "messages": HELLO, "cache_salt": "s"}
    assert (await post(app, "/prewarm", body, authorization="Bearer sk-ops")).status == 200
    expected = {salt_of(key, "s") for key in KEYS}
    assert {sampling.cache_salt for _, sampling in engine.submitted} == expected
    assert len(engine.submitted) == len(expected) == 3
    assert json.loads(file.read_text())[0]["cache_salt"] == "s"
