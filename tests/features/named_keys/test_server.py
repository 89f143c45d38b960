"""Several API keys in a server process, with the official client."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import httpx
import openai
import pytest

from tests.e2e.conftest import ANY_MODEL, PATIENT_S, Process, start_process
from tests.features.named_keys.files import written

pytestmark = pytest.mark.model

HELLO = [{"role": "user", "content": "Hello!"}]
RULES = {"alice": {"models": ["demo"], "rpm_limit": 1}, "ops": {"roles": ["inference", "admin"]}}


def write(path: Path, *names: str) -> None:
    """Replaces the file atomically, as an operator should."""
    new = path.with_suffix(".new")
    hashes = {name: {"sha256": hashlib.sha256(f"sk-{name}".encode()).hexdigest()} for name in names}
    new.write_text(json.dumps({name: hashes[name] | RULES[name] for name in names}))
    new.chmod(0o600)
    new.replace(path)


def test_keys_with_roles_models_and_limits(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    write(path, "alice", "ops")
    with start_process("--api_key_file", str(path), "--file_system_poll_wait_seconds", "0.05") as process:
        process.wait_for("ready: demo")

        def client(name: str) -> openai.OpenAI:
            return openai.OpenAI(base_url=process.url + "/v1", api_key=f"sk-{name}", max_retries=0, timeout=PATIENT_S)

        with client("alice") as alice, client("ops") as ops, client("eve") as eve:
            with pytest.raises(openai.AuthenticationError):
                eve.models.list()
            assert [model.id for model in alice.models.list()] == ["demo"]
            assert len(ops.models.list().data) == 2
            with pytest.raises(openai.NotFoundError):
                alice.models.retrieve("demo-embed")
            with pytest.raises(openai.PermissionDeniedError):
                alice.get("/usage", cast_to=object)
            answer = alice.chat.completions.with_raw_response.create(model="demo", messages=HELLO, max_tokens=4)
            assert answer.headers["x-ratelimit-limit-requests"] == "1"
            usage = answer.parse().usage
            shown = ops.get("/usage", cast_to=object)
            assert isinstance(shown, dict)
            [one] = [row for row in shown["data"][0]["results"] if row["api_key_id"] == "alice"]
            assert usage
            assert one["num_model_requests"] == 1
            assert (one["input_tokens"], one["output_tokens"]) == (usage.prompt_tokens, usage.completion_tokens)
            write(path, "ops")
            process.wait_for("API keys: ops")
            with pytest.raises(openai.AuthenticationError):
                alice.chat.completions.create(model="demo", messages=HELLO, max_tokens=4)
            assert ops.chat.completions.create(model="demo", messages=HELLO, max_tokens=4).usage
        assert not any("sk-" in line for line in process.lines)


# --- the cached prompts of named keys: in memory, on disk over a restart, and computed ahead


PROMPTS = [[prompt * 100 + token for token in range(100)] for prompt in range(1, 4)]


def cached(process: Process, key: str, prompt: list[int], **fields: str) -> bool:
    """Sends a prompt, and returns whether a part of it was cached."""
    body = {"model": "m", "prompt": prompt, "temperature": 0, "max_tokens": 1, **fields}
    headers = {"authorization": f"Bearer sk-{key}"}
    answer = httpx.post(process.url + "/v1/completions", json=body, headers=headers, timeout=300)
    found: int = answer.raise_for_status().json()["usage"]["prompt_tokens_details"]["cached_tokens"]
    return found > 0


def test_a_key_finds_its_own_prompts_and_those_of_its_scope(tmp_path: Path) -> None:
    ahead, known, again = PROMPTS
    prewarm = tmp_path / "prewarm.json"
    prewarm.write_text(json.dumps([{"prompt": ahead}]))
    keys = written(tmp_path, {"alice": {}, "bob": {}, "carol": {"cache_scope": "t"}, "dave": {"cache_scope": "t"}})
    flags = ["--model_name", "m", "--model_path", ANY_MODEL["model_path"]]
    flags += ["--api_key_file", keys, "--prewarm", str(prewarm)]
    flags += ["--prefix_cache_path", str(tmp_path / "cache"), "--prefix_cache_disk_gb", "0.05"]
    with start_process(*flags) as process:
        process.wait_for("ready: m")
        assert [cached(process, key, ahead) for key in ("alice", "bob", "carol")] == [True] * 3
        assert [cached(process, "alice", known) for _ in range(2)] == [False, True]
        assert [cached(process, key, known) for key in ("bob", "carol", "dave")] == [False, False, True]
        assert not cached(process, "alice", known, cache_salt="s")
        assert not cached(process, "bob", known, cache_salt="key:alice\n")
        assert not cached(process, "alice", again)
        assert process.stop() == 0
    with start_process(*flags) as process:
        process.wait_for("ready: m")
        assert [cached(process, key, again) for key in ("bob", "alice")] == [False, True]
