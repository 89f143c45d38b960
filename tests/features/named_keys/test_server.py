"""Several API keys in a server process: with the official client, and the cached prompts of each over a restart."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from tests.e2e.conftest import ANY_MODEL, PATIENT_S, Process, start_process
from tests.features.named_keys.files import written

pytestmark = pytest.mark.model

HELLO: Any = [{"role": "user", "content": "Hello!"}]
TEAM = {"cache_scope": "t"}
ADMIN = {"roles": ["inference", "admin"]}
KEYS: dict[str, Any] = {"alice": {}, "bob": {}, "carol": TEAM, "dave": TEAM, "ops": ADMIN}
LIMITED = {"eva": {"models": ["m"], "rpm_limit": 1}}
PROMPTS = [[prompt * 100 + token for token in range(100)] for prompt in range(1, 4)]


def replace(path: str, keys: dict[str, Any], directory: Path) -> None:
    """Replaces the file atomically, as an operator should."""
    directory.mkdir()
    Path(written(directory, keys)).replace(path)


def cached(process: Process, key: str, prompt: list[int], **fields: str) -> bool:
    """Sends a prompt, and returns whether a part of it was cached."""
    body = {"model": "m", "prompt": prompt, "temperature": 0, "max_tokens": 1, **fields}
    headers = {"authorization": f"Bearer sk-{key}"}
    answer = httpx.post(process.url + "/v1/completions", json=body, headers=headers, timeout=300)
    found: int = answer.raise_for_status().json()["usage"]["prompt_tokens_details"]["cached_tokens"]
    return found > 0


def check_roles_models_and_limits(process: Process, path: str, directory: Path) -> None:
    """Does with OpenAI's client what the keys allow, and revokes one of them."""

    def client(name: str) -> openai.OpenAI:
        return openai.OpenAI(base_url=process.url + "/v1", api_key=f"sk-{name}", max_retries=0, timeout=PATIENT_S)

    with client("eva") as eva, client("ops") as ops, client("nobody") as nobody:
        with pytest.raises(openai.AuthenticationError):
            nobody.models.list()
        assert [model.id for model in eva.models.list()] == ["m"]
        assert len(ops.models.list().data) == 2
        with pytest.raises(openai.NotFoundError):
            eva.models.retrieve("other")
        with pytest.raises(openai.PermissionDeniedError):
            eva.get("/usage", cast_to=object)
        answer = eva.chat.completions.with_raw_response.create(model="m", messages=HELLO, max_tokens=4)
        assert answer.headers["x-ratelimit-limit-requests"] == "1"
        usage = answer.parse().usage
        shown: Any = ops.get("/usage", cast_to=object)
        [one] = [row for row in shown["data"][0]["results"] if row["api_key_id"] == "eva"]
        assert usage
        assert one["num_model_requests"] == 1
        assert (one["input_tokens"], one["output_tokens"]) == (usage.prompt_tokens, usage.completion_tokens)
        replace(path, KEYS, directory)
        process.wait_for("API keys: alice")
        with pytest.raises(openai.AuthenticationError):
            eva.chat.completions.create(model="m", messages=HELLO, max_tokens=4)
        assert ops.chat.completions.create(model="m", messages=HELLO, max_tokens=4).usage


def test_each_key_has_its_rights_and_finds_its_own_prompts_and_those_of_its_scope(tmp_path: Path) -> None:
    ahead, known, again = PROMPTS
    prewarm = tmp_path / "prewarm.json"
    prewarm.write_text(json.dumps([{"prompt": ahead}]))
    keys = written(tmp_path, LIMITED | KEYS)
    flags = ["--model_name", "m", "--model_path", ANY_MODEL["model_path"], "--model_aliases", "other"]
    flags += ["--api_key_file", keys, "--prewarm", str(prewarm), "--file_system_poll_wait_seconds", "0.05"]
    flags += ["--prefix_cache_path", str(tmp_path / "cache"), "--prefix_cache_disk_gb", "0.05"]
    with start_process(*flags) as process:
        process.wait_for("ready: m")
        check_roles_models_and_limits(process, keys, tmp_path / "new")
        assert [cached(process, key, ahead) for key in ("alice", "bob", "carol")] == [True] * 3
        assert [cached(process, "alice", known) for _ in range(2)] == [False, True]
        assert [cached(process, key, known) for key in ("bob", "carol", "dave")] == [False, False, True]
        assert not cached(process, "alice", known, cache_salt="s")
        assert not cached(process, "bob", known, cache_salt="key:alice\n")
        assert not cached(process, "alice", again)
        assert process.stop() == 0
        assert not any("sk-" in line for line in process.lines)
    with start_process(*flags) as process:
        process.wait_for("ready: m")
        assert [cached(process, key, again) for key in ("bob", "alice")] == [False, True]
