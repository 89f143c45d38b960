"""Several API keys in a server process, with the official client."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import openai
import pytest

from tests.e2e.conftest import PATIENT_S, start_process

pytestmark = pytest.mark.model

HELLO = [{"role": "user", "content": "Hello!"}]
RULES = {"alice": {"models": ["demo"], "rpm_limit": 1}, "ops": {"roles": ["inference", "admin"]}}


def write(path: Path, *names: str) -> None:
    """Replaces the file as an operator should: at once."""
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
