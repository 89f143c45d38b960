"""API keys: their owners, permissions and limits, and changes to their file."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import logging
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import orjson
import pytest

from lean_ovms import features
from lean_ovms.api import router
from lean_ovms.api.app import App
from lean_ovms.api.middleware import release_all
from lean_ovms.composition import compose
from lean_ovms.config import Config
from lean_ovms.errors import TooManyRequests, WrongOptions
from lean_ovms.features.named_keys import usage as key_usage
from lean_ovms.features.named_keys.file import MAX_FILE_BYTES, MAX_KEYS, KeySpec, read_keys
from lean_ovms.features.named_keys.keys import NamedKey, NamedKeys, RateLimit, duration
from lean_ovms.features.named_keys.usage import KeyUsage, KeyUsages, read_usage
from lean_ovms.observability.records import GenerationRecord, RequestRecord
from lean_ovms.types import Request, Response
from tests.api.conftest import MakeApp, events, get, post, whole
from tests.fakes import say
from tests.features.named_keys.files import ALICE, OPS, USERS, written
from tests.waiting import until

CHAT = "/v1/chat/completions"
HELLO = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}


async def asked(app: App, headers: dict[str, str], **fields: Any) -> Response:
    """Sends a chat, and returns its response, closed."""
    response = await post(app, CHAT, HELLO | fields, **headers)
    await response.aclose()
    return response


def error(response: Response) -> dict[str, Any]:
    assert isinstance(response.body, bytes)
    found: dict[str, Any] = orjson.loads(response.body)["error"]
    return found


def limits(response: Response) -> dict[str, str]:
    return {name: value for name, value in response.headers if name.startswith("x-ratelimit-")}


# --- who


async def test_each_key_of_the_file_opens_the_server_and_no_other_does(make_app: MakeApp, tmp_path: Path) -> None:
    app, engine = await make_app(lambda *_: say("x"), api_key_file=written(tmp_path, USERS), api_key="of the commands")
    for headers in (ALICE, OPS, {"x_api_key": "sk-alice"}, {"authorization": "bearer  sk-alice "}):
        assert (await asked(app, headers)).status == 200
    clients = [client for client, *_ in engine.origins]
    assert clients == ["key:alice", "key:ops", "key:alice", "key:alice"]
    digest = hashlib.sha256(b"sk-alice").hexdigest()
    for wrong in ("", "sk-alic", "sk-alicee", digest, "of the commands"):
        response = await asked(app, {"authorization": f"Bearer {wrong}"})
        assert (response.status, error(response)["code"]) == (401, "invalid_api_key")
    assert (await asked(app, {})).status == 401
    assert (await get(app, "/health")).status == 200


def test_a_key_is_compared_with_all_keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keys, compared = NamedKeys(Config(fake_engine=True, api_key_file=written(tmp_path, USERS))), list[bytes]()
    monkeypatch.setattr(hmac, "compare_digest", lambda given, key: compared.append(key) or given == key)
    found = keys.find(Request("POST", CHAT, headers=ALICE))
    assert found is not None
    assert found.name == "alice"
    assert compared == [hashlib.sha256(f"sk-{name}".encode()).digest() for name in USERS]


# --- what


async def test_what_changes_the_server_needs_the_role_admin(make_app: MakeApp, tmp_path: Path) -> None:
    only_admin = {"root": {"roles": ["admin"]}}
    app, _ = await make_app(lambda *_: say("x"), api_key_file=written(tmp_path, USERS | only_admin))
    admins = [route for route in router.every() if route.changes or route.path in ("/server_info", "/v1/usage")]
    assert {"/sleep", "/api/pull", "/models/load", "/reset_prefix_cache", "/v1/config/reload"} <= {
        route.path for route in admins
    }
    for route in (*admins, *(route for route in compose().routes if route.auth == "metrics")):
        response = await app.handle(Request(route.method, route.path, headers=ALICE))
        assert response.status == 403, route
        assert (await app.handle(Request(route.method, route.path))).status == 401, route
    response = await post(app, "/reset_prefix_cache", {}, **ALICE)
    assert error(response)["message"] == ("This API key does not have the role admin, which /reset_prefix_cache needs")
    assert error(response) | {"message": ""} == {
        "message": "",
        "type": "permission_error",
        "param": None,
        "code": "insufficient_permissions",
    }
    assert (await post(app, "/reset_prefix_cache", {}, **OPS)).status == 200
    root = {"authorization": "Bearer sk-root"}
    assert (await asked(app, root)).status == 403
    assert (await get(app, "/v1/models", **root)).status == 200


async def test_a_model_that_a_key_may_not_use_does_not_exist_for_it(make_app: MakeApp, tmp_path: Path) -> None:
    users = USERS | {"alice": {"models": ["other", "m-*"]}, "bob": {"models": ["m"]}}
    path = written(tmp_path, users)
    app, _ = await make_app(
        lambda *_: say("x"), api_key_file=path, model_aliases="m-alias b", response_store=str(tmp_path / "store")
    )
    bob = {"authorization": "Bearer sk-bob"}
    for headers, names in ((ALICE, ["m-alias"]), (bob, ["m"]), (OPS, ["m", "m-alias", "b"])):
        assert [model["id"] for model in (await whole(await get(app, "/v1/models", **headers)))["data"]] == names
        tags = await whole(await get(app, "/api/tags", **headers))
        assert [model["name"] for model in tags["models"]] == [f"{name}:latest" for name in names]
    assert (await get(app, "/v1/models")).status == 401
    missing = await asked(app, ALICE, model="nothing")
    large = [{"role": "user", "content": "x" * 100_000}]  # large enough to be parsed in another thread
    for fields in ({}, {"messages": large}):
        hidden = await asked(app, ALICE, model="m", **fields)
        assert (hidden.status, error(hidden)["code"]) == (404, "model_not_found")
        assert error(hidden)["message"] == error(missing)["message"].replace("nothing", "m")
    for path in ("/v1/models/m", "/v2/models/m/ready", "/props?model=m"):
        plain, _, query = path.partition("?")
        assert (await app.handle(Request("GET", plain, query, headers=ALICE))).status == 404, path
    assert (await post(app, "/api/show", {"model": "m"}, **ALICE)).status == 404
    assert (await post(app, "/v1/responses", {"model": "m", "input": "hi"}, **ALICE)).status == 404
    assert (await whole(await get(app, "/v1/config", **ALICE))) == {}
    assert (await asked(app, ALICE, model="m-alias")).status == 200
    assert (await asked(app, bob)).status == 200


@pytest.mark.slow
async def test_the_openapi_document_has_the_models_that_a_key_may_use(make_app: MakeApp, tmp_path: Path) -> None:
    app, _ = await make_app(say("x"), api_key_file=written(tmp_path, USERS | {"alice": {"models": ["other"]}}))
    for headers, names in ((ALICE, []), (OPS, ["m", "", None])):
        document = await whole(await get(app, "/openapi.json", **headers))
        body = document["paths"][CHAT]["post"]["requestBody"]["content"]["application/json"]["schema"]
        assert body["properties"]["model"].get("enum", []) == names


# --- how much


def test_a_rate_is_refilled_evenly_and_may_be_overdrawn() -> None:
    now = [100.0]
    rate = RateLimit(60, lambda: now[0])
    rate.use(90)
    assert (rate.left(), rate.seconds_until(1), rate.seconds_until(60)) == (-30, 31, 90)
    now[0] += 31
    assert rate.left() == 1
    now[0] += 1000
    assert (rate.left(), rate.seconds_until(60)) == (60, 0)
    assert [duration(s) for s in (0, 0.0123, 1, 59.2, 61)] == ["0ms", "13ms", "1s", "1m0s", "1m1s"], "as OpenAI's are"


def key_at(now: list[float], **rules: int) -> NamedKey:
    return NamedKey(KeySpec(digest=b"", name="alice", **rules), lambda: now[0], KeyUsages(""))


def used(key: NamedKey) -> KeyUsage:
    """Returns the usage of all models together."""
    total = KeyUsage("alice")
    for usage in key._usages.total().sums.values():
        total.add(usage)
    return total


def start(key: NamedKey) -> RequestRecord:
    record = RequestRecord("id", "POST", CHAT, "", 0.0, model="m", key=key)
    key.start_request(record, counts_as_running=True)
    return record


def generated(prompt: int, completion: int) -> GenerationRecord:
    return GenerationRecord(
        engine_id=1, prompt_tokens=prompt, completion_tokens=completion, ttft_s=None, seconds=0, decode_s=0,
        finish_reasons=("stop",), cached_tokens=3,
    )  # fmt: skip


def test_requests_of_a_minute() -> None:
    now = [0.0]
    key = key_at(now, rpm_limit=2)
    start(key)
    start(key)
    with pytest.raises(TooManyRequests, match=r"2 requests per minute. Please try again in 30s") as refused:
        start(key)
    assert (refused.value.code, refused.value.headers()) == ("rate_limit_exceeded", [("Retry-After", "30")])
    assert dict(key.headers()) == {
        "x-ratelimit-limit-requests": "2",
        "x-ratelimit-remaining-requests": "0",
        "x-ratelimit-reset-requests": "1m0s",
    }
    now[0] = 30.0
    release_all(start(key))
    assert (used(key).requests, used(key).rejections) == (1, 1), "the others are not over"


def test_tokens_of_a_minute_are_counted_when_they_are_known() -> None:
    now = [0.0]
    key = key_at(now, tpm_limit=60)
    start(key).add(generated(40, 50))
    with pytest.raises(TooManyRequests, match="60 tokens per minute"):
        start(key)
    assert dict(key.headers())["x-ratelimit-remaining-tokens"] == "0"
    assert dict(key.headers())["x-ratelimit-reset-tokens"] == "1m30s"
    now[0] = 31.0
    start(key)
    usage = used(key)
    assert (usage.prompt_tokens, usage.cached_tokens, usage.completion_tokens) == (40, 3, 50)


def test_a_changed_limit_applies_at_once_and_the_same_one_is_not_filled_again() -> None:
    now = [0.0]
    key = key_at(now, rpm_limit=1, tpm_limit=10)
    start(key)
    key.change(KeySpec(digest=b"", name="alice", rpm_limit=1, max_parallel_requests=1))
    assert [name for name, _ in key.headers()] == [f"x-ratelimit-{n}-requests" for n in ("limit", "remaining", "reset")]
    with pytest.raises(TooManyRequests, match="1 request per minute"):
        start(key)
    key.change(KeySpec(digest=b"", name="alice", max_parallel_requests=1))
    with pytest.raises(TooManyRequests, match="1 request at a time"):  # the first request is still running
        start(key)


async def test_every_answer_of_a_limited_key_says_what_is_left(make_app: MakeApp, tmp_path: Path) -> None:
    users = USERS | {"alice": {"rpm_limit": 2, "tpm_limit": 1000}}
    app, _ = await make_app(lambda *_: say("x", "y"), api_key_file=written(tmp_path, users))
    stream = await post(app, CHAT, HELLO | {"stream": True}, **ALICE)
    assert limits(stream)["x-ratelimit-remaining-requests"] == "1"
    await events(stream)
    second = await asked(app, ALICE)
    assert {name: limits(second)[name] for name in limits(second) if "-reset-" not in name} == {
        "x-ratelimit-limit-tokens": "1000",
        "x-ratelimit-remaining-tokens": limits(second)["x-ratelimit-remaining-tokens"],
        "x-ratelimit-limit-requests": "2",
        "x-ratelimit-remaining-requests": "0",
    }
    assert 0 < int(limits(second)["x-ratelimit-remaining-tokens"]) < 1000
    refused = await asked(app, ALICE)
    assert (refused.status, error(refused)["type"], error(refused)["code"]) == (
        429,
        "rate_limit_error",
        "rate_limit_exceeded",
    )
    assert len(limits(refused)) == 6
    assert 1 <= int(dict(refused.headers)["Retry-After"]) <= 60
    listed = await get(app, "/v1/models", **ALICE)
    assert (listed.status, len(limits(listed))) == (200, 6)  # listing models does not count
    assert limits(await asked(app, OPS)) == {}


async def test_a_stream_runs_until_its_response_is_closed(make_app: MakeApp, tmp_path: Path) -> None:
    users = {"alice": {"max_parallel_requests": 1}}
    app, _ = await make_app(lambda *_: say("x"), api_key_file=written(tmp_path, users))
    stream = await post(app, CHAT, HELLO | {"stream": True}, **ALICE)
    assert (await asked(app, ALICE)).status == 429
    await stream.aclose()
    assert (await asked(app, ALICE, model="none")).status == 404
    assert (await asked(app, ALICE)).status == 200


# --- usage


async def test_usage_by_key(make_app: MakeApp, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    before = int(time.time())
    users = USERS | {"alice": {"rpm_limit": 1}}
    path = written(tmp_path, users)
    app, _ = await make_app(lambda *_: say("x", "y"), api_key_file=path, metrics_enable=True, access_log=True)
    with caplog.at_level(logging.INFO):
        answer = await whole(await post(app, CHAT, HELLO, **ALICE))
        await asked(app, ALICE)
    assert " key=alice " in caplog.text
    assert "sk-alice" not in caplog.text
    page = await whole(await get(app, "/v1/usage", **OPS))
    [bucket] = page.pop("data")
    assert page == {"object": "page", "has_more": False, "next_page": None}
    assert before <= bucket["start_time"] <= bucket["end_time"]
    alice, refused = bucket["results"]
    assert alice == {
        "object": "usage.result",
        "api_key_id": "alice",
        "model": "m",
        "num_model_requests": 1,
        "num_rejected_requests": 0,
        "input_tokens": answer["usage"]["prompt_tokens"],
        "input_cached_tokens": 0,
        "output_tokens": answer["usage"]["completion_tokens"],
    }
    assert alice["input_tokens"] > 0 < alice["output_tokens"]
    assert (refused["api_key_id"], refused["model"], refused["num_rejected_requests"]) == ("alice", None, 1)
    shown = (await get(app, "/metrics", **OPS)).body
    assert isinstance(shown, bytes)
    assert b'lean_ovms_api_key_requests_total{api_key_name="alice",model_name="m"} 1\n' in shown
    assert b'lean_ovms_api_key_rejections_total{api_key_name="alice",model_name=""} 1\n' in shown
    tokens = b'lean_ovms_api_key_prompt_tokens_total{api_key_name="alice",model_name="m"} %d\n' % alice["input_tokens"]
    assert tokens in shown
    written(tmp_path, {"ops": users["ops"]})
    await app.services.keys.reload()
    shown = (await get(app, "/metrics", **OPS)).body
    assert isinstance(shown, bytes)
    assert b"alice" not in shown


async def results(app: App) -> dict[tuple[str, str | None], int]:
    """Returns the number of requests by key and model from /v1/usage."""
    [bucket] = (await whole(await get(app, "/v1/usage", **OPS)))["data"]
    return {(one["api_key_id"], one["model"]): one["num_model_requests"] for one in bucket["results"]}


async def test_usage_is_kept_over_restarts_and_shared(make_app: MakeApp, tmp_path: Path) -> None:
    options = {"api_key_file": written(tmp_path, USERS), "api_key_usage_file": str(tmp_path / "usage.json")}
    first, _ = await make_app(lambda *_: say("x"), **options)
    beside, _ = await make_app(lambda *_: say("x"), **options)
    await asked(first, ALICE)
    await asked(first, ALICE, model="none")
    await asked(beside, OPS)
    since = first.services.keys.usages.total().since
    for app in (beside, first):
        await app.close()
        await app.close()
    everything = {("alice", "m"): 1, ("alice", None): 1, ("ops", "m"): 1}
    assert await results(first) == everything, "what another server has added is in it, too"
    assert sorted(os.listdir(tmp_path)) == ["keys.json", "usage.json"]
    options["api_key_file"] = written(tmp_path, {"ops": USERS["ops"]})
    second, _ = await make_app(lambda *_: say("x"), metrics_enable=True, **options)
    assert await results(second) == everything, "that of revoked keys stays"
    assert second.services.keys.usages.total().since <= since


async def test_usage_is_written_while_the_server_runs(
    make_app: MakeApp, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(key_usage, "WRITE_S", 0.0)
    path = tmp_path / "there" / "usage.json"
    path.parent.mkdir()
    app, _ = await make_app(lambda *_: say("x"), api_key_file=written(tmp_path, USERS), api_key_usage_file=str(path))

    def requests() -> int:
        return sum(usage.requests for usage in read_usage(path).sums.values())

    await asked(app, ALICE)
    await until(lambda: requests() == 1)
    path.unlink()
    path.parent.rmdir()  # makes writing fail
    await asked(app, ALICE)
    await until(lambda: "cannot be written" in caplog.text)
    path.parent.mkdir()
    await asked(app, ALICE)
    await until(lambda: requests() == 2)
    await app.close()  # waits until everything is written
    assert await results(app) == {("alice", "m"): 2}


def test_a_damaged_usage_file_stops_the_start(tmp_path: Path) -> None:
    path = tmp_path / "usage.json"
    for text in ("", "[]", "{}", '{"since": 1, "usage": [{"name": "a", "requests": "x"}]}', "{"):
        path.write_text(text)
        with pytest.raises(WrongOptions, match=r"--api_key_usage_file .*usage.json: it is damaged"):
            KeyUsages(str(path))
        assert path.read_text() == text
    with pytest.raises(WrongOptions, match="No such file or directory"):
        KeyUsages(str(tmp_path / "none" / "usage.json"))


# --- the file changes


async def test_a_key_is_revoked_by_a_reload_and_a_broken_file_changes_nothing(
    make_app: MakeApp, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = Path(written(tmp_path, USERS))
    app, _ = await make_app(lambda *_: say("x"), api_key_file=str(path))
    path.write_text("{")
    response = await post(app, "/v1/config/reload", {}, **OPS)
    assert response.status == 500
    assert "the old API keys are kept: " in caplog.text
    assert (await asked(app, ALICE)).status == 200
    written(tmp_path, {"ops": USERS["ops"], "bob": {}})
    assert (await post(app, "/v1/config/reload", {}, **OPS)).status == 200
    assert (await asked(app, ALICE)).status == 401
    assert (await asked(app, {"authorization": "Bearer sk-bob"})).status == 200
    path.write_text("one key, which could do everything")
    with pytest.raises(WrongOptions, match="its keys must keep their names"):
        await app.services.keys.reload()
    path.write_text("{}")
    await app.services.keys.reload()
    assert (await asked(app, OPS)).status == 401


async def test_a_changed_file_is_read_without_a_request(tmp_path: Path) -> None:
    path = Path(written(tmp_path, USERS))
    keys = NamedKeys(Config(fake_engine=True, api_key_file=str(path)))
    alice = Request("POST", CHAT, headers=ALICE)
    watching = asyncio.create_task(keys.watch(0.001))
    try:
        assert keys.find(alice) is not None
        written(tmp_path, {"ops": {}})
        await until(lambda: keys.find(alice) is None)
        (tmp_path / "new").mkdir()
        Path(written(tmp_path / "new", USERS)).replace(path)
        await until(lambda: keys.find(alice) is not None)
    finally:
        watching.cancel()
        await asyncio.wait([watching])
    await NamedKeys(Config(fake_engine=True, api_key="k")).watch(0.001)  # returns, because there is no file


HASH = "0" * 64


WRONG: list[tuple[Any, str]] = [
    ("", "the first line is empty"),
    ("\n key", "the first line is empty"),
    ('{"a": ', "not valid JSON in line 1"),
    ('{"a": ' * 100_000, "nested too deeply"),
    (b"\xff\xfe", "not a text file"),
    ("x" * (MAX_FILE_BYTES + 1), f"it has more than {MAX_FILE_BYTES} bytes"),
    ('# keys\n{"a": {"sha256": "0"}}', "not valid JSON in line 1"),
    ('[{"sha256": "0"}]', "it must be an object"),
    ({"a": 1}, "a must be an object"),
    ({"a": {}}, "a.sha256 must be the SHA-256 hash of the key"),
    ({"a": {"sha256": "sk-secret"}}, "a.sha256 must be the SHA-256 hash of the key"),
    ({"a": {"sha256": HASH, "rpm": 1}}, "a: 'rpm' is not one of sha256, roles, models, cache_scope,"),
    ({"a b": {"sha256": HASH}}, "'a b' is not a name"),
    *(
        ({"a": {"sha256": HASH, "cache_scope": scope}}, "a.cache_scope must be a name")
        for scope in ("", "a\nb", 3, ["x"], "x" * 65)
    ),
    ({"a": {"sha256": HASH, "roles": ["root"]}}, "a.roles may only contain inference and admin"),
    ({"a": {"sha256": HASH, "roles": "admin"}}, "a.roles must be a non-empty list of strings"),
    ({"a": {"sha256": HASH, "models": []}}, "a.models must be a non-empty list of strings"),
    ({"a": {"sha256": HASH, "models": ["m"], "roles": ["admin"]}}, "a.models needs a key without the role admin"),
    ({"a": {"sha256": HASH, "rpm_limit": True}}, "a.rpm_limit must be a whole number, 0 for no limit"),
    ({"a": {"sha256": HASH, "tpm_limit": -1}}, "a.tpm_limit must be a whole number, 0 for no limit"),
    ({"a": {"sha256": HASH}, "b": {"sha256": HASH}}, "b and a have the same sha256"),
    ('{"a": {"models": ["m"], "models": ["*"]}}', "an object contains the same name twice"),
    ({f"k{n}": {} for n in range(MAX_KEYS + 1)}, f"it has more than {MAX_KEYS} keys"),
]


def test_a_wrong_file_is_refused_without_a_word_of_its_keys(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    for content, message in WRONG:
        text = json.dumps(content) if isinstance(content, dict) else content
        path.write_bytes(text.encode() if isinstance(text, str) else text)
        with pytest.raises(WrongOptions) as refused:
            read_keys(Config(fake_engine=True, api_key_file=str(path)))
        assert str(refused.value).startswith(f"--api_key_file {path}: ")
        assert message in str(refused.value)
        assert "sk-secret" not in str(refused.value)


@pytest.mark.slow
def test_the_documented_command_makes_a_key_for_the_documented_file(tmp_path: Path) -> None:
    text = (Path(features.__file__).parent / "named_keys" / "README.md").read_text("utf-8")
    [command] = re.findall(r'```sh\npython -c "(.*)"\n```', text)
    [example] = re.findall(r"```json\n(.*?)```", text, re.DOTALL)
    path = tmp_path / "keys"
    made = []
    for _ in range(2):
        done = subprocess.run([sys.executable, "-c", command], capture_output=True, text=True, check=True, timeout=300)
        key, digest = done.stdout.split()
        example = example.replace("64 hexadecimal digits", digest, 1)
        made.append(key)
    path.write_text(example)
    keys = NamedKeys(Config(fake_engine=True, api_key_file=str(path)))
    found = [keys.find(Request("POST", CHAT, headers={"x-api-key": key})) for key in made]
    assert [key and key.name for key in found] == ["alice", "operator"]


def test_only_a_regular_file_is_read_and_one_that_all_can_read_is_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(WrongOptions, match=r"fifo: (it is not a regular file|Invalid argument)"):
        read_keys(Config(fake_engine=True, api_key_file=str(tmp_path / "fifo")))
    path = Path(written(tmp_path, USERS))
    NamedKeys(Config(fake_engine=True, api_key_file=str(path)))
    assert "can read" not in caplog.text
    path.chmod(0o644)
    NamedKeys(Config(fake_engine=True, api_key_file=str(path)))
    assert f"every user of this machine can read --api_key_file {path}" in caplog.text
