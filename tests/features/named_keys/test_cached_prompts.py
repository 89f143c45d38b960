"""The cached prompts of named keys, with the real engine: in memory, on disk over a restart, and computed ahead."""

from __future__ import annotations

import json
from pathlib import Path

import httpx
import pytest

from lean_ovms.config import DEMO_MODEL
from tests.e2e.conftest import Process, start_process
from tests.features.named_keys.files import written

pytestmark = pytest.mark.model

PROMPTS = [[prompt * 100 + token for token in range(100)] for prompt in range(1, 4)]


def cached(process: Process, key: str, prompt: list[int], **fields: str) -> bool:
    """Asks, and returns whether something of the prompt was cached."""
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
    flags = ["--model_name", "m", "--model_path", str(DEMO_MODEL), "--api_key_file", keys, "--prewarm", str(prewarm)]
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
