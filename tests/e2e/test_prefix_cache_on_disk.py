"""The cache of a prompt survives restarts of the server, crashes of the engine, and unloading."""

from __future__ import annotations

import json
import os
import random
import signal
from pathlib import Path

import httpx
import pytest

from lean_ovms.config import DEMO_MODEL, Config
from tests.e2e.conftest import ANY_MODEL, EXACT, Process, start_process
from tests.engine.paged.test_zoo import VOCAB, unpacked

pytestmark = pytest.mark.model

BLOCK = 32


PROMPT = list(range(20, 320))


def flags_of(*more: str) -> list[str]:
    return ["--model_path", ANY_MODEL["model_path"], "--model_name", "m", "--metrics_enable", *more]


def flags_of_hybrid(folder: Path) -> list[str]:
    """Returns the options for a hybrid model, which is written into the folder."""
    folder.mkdir()
    unpacked("qwen3_5_text", folder)
    (folder / "tokenizer.json").symlink_to(Path(Config().model_dir) / "tokenizer.json")
    return ["--model_path", str(folder), "--model_name", "m", "--metrics_enable", "--plugin_config", EXACT]


def complete(process: Process, prompt: list[int], **fields: object) -> tuple[list[int], int]:
    """Returns the tokens of a completion, and how many prompt tokens were cached."""
    body = {"model": "m", "prompt": prompt, "temperature": 0, "max_tokens": 20, "return_token_ids": True, **fields}
    answer = httpx.post(process.url + "/v1/completions", json=body, timeout=300).raise_for_status().json()
    return answer["choices"][0]["token_ids"], answer["usage"]["prompt_tokens_details"]["cached_tokens"]


def engine(process: Process) -> int:
    """Returns the process id of the engine."""
    number = process.popen.pid
    children = Path(f"/proc/{number}/task/{number}/children").read_text().split()
    [found] = [int(pid) for pid in children if b"engine.worker" in Path(f"/proc/{pid}/cmdline").read_bytes()]
    return found


def metric(process: Process, name: str) -> float:
    lines = httpx.get(process.url + "/metrics").text.splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith(f"lean_ovms_prefix_cache_disk_{name}"))


def test_a_prompt_is_not_computed_again_after_a_restart(tmp_path: Path) -> None:
    """The demo model with a cache of 4 bits has more to write than can be written before the server stops."""
    dice = random.Random(1)
    prompts = [[dice.randrange(12, VOCAB) for _ in range(length)] for length in (300, 500)]
    flags = ["--model_path", str(DEMO_MODEL), "--model_name", "m", "--metrics_enable", "--kv_cache_precision", "u4"]
    flags += ["--prefix_cache_path", str(tmp_path / "cache"), "--prefix_cache_disk_gb", "0.05"]
    with start_process(*flags) as process:
        process.wait_for("ready: m")
        answers = [complete(process, prompt) for prompt in prompts]
        assert [cached for _, cached in answers] == [0, 0]
        assert process.stop() == 0
    with start_process(*flags) as process:
        process.wait_for("ready: m")
        for prompt, (answer, _) in zip(prompts, answers, strict=True):
            assert complete(process, prompt, cache_salt="other")[1] == 0
            assert complete(process, prompt) == (answer, (len(prompt) - 1) // BLOCK * BLOCK)
        assert metric(process, "hit_tokens_total") == sum((len(prompt) - 1) // BLOCK * BLOCK for prompt in prompts)
        assert metric(process, "bytes") > 0
        assert metric(process, "errors_total") == 0
        assert sum(one.stat().st_size for one in (tmp_path / "cache").glob("*/*")) < 0.05 * (1 << 30)


def test_what_was_saved_on_request_is_there_after_the_server_was_killed(tmp_path: Path) -> None:
    flags = flags_of("--prefix_cache_path", str(tmp_path))
    with start_process(*flags) as process:
        process.wait_for("ready: m")
        answer, _ = complete(process, PROMPT)
        [saved] = httpx.post(process.url + "/v1/prefix_cache/save", timeout=300).raise_for_status().json()["data"]
        on_disk = httpx.post(process.url + "/prefix_cache/restore", timeout=300).raise_for_status().json()["data"]
        assert metric(process, "written_bytes_total") >= saved["bytes"]
        os.kill(engine(process), signal.SIGKILL)  # before it can write more
        process.popen.kill()
    with start_process(*flags) as process:
        process.wait_for("ready: m")
        found = httpx.post(process.url + "/prefix_cache/restore", timeout=300).raise_for_status().json()
        assert found == {"object": "list", "data": on_disk}
        assert on_disk[0]["model"] == "m"
        assert on_disk[0]["blocks"] >= max(9, saved["blocks"])
        assert complete(process, PROMPT) == (answer, 288)
        assert metric(process, "hit_tokens_total") == 288


def test_what_is_computed_ahead_is_cached_for_the_first_request_and_kept_over_unloading(tmp_path: Path) -> None:
    system = (
        "You answer all questions of the user in a short and friendly manner, and never forget to say goodbye. " * 2
    )
    chat = {"messages": [{"role": "system", "content": system}, {"role": "user", "content": "Hello!"}], "max_tokens": 4}
    file = tmp_path / "prewarm.json"
    file.write_text(json.dumps([chat]))
    flags = flags_of("--prewarm", str(file))

    def cached(process: Process, user: str) -> int:
        asked = {**chat, "messages": [chat["messages"][0], {"role": "user", "content": user}]}
        answer = httpx.post(process.url + "/v1/chat/completions", json=asked, timeout=300).raise_for_status().json()
        found = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
        assert isinstance(found, int)
        return found

    with start_process(*flags, "--prefix_cache_path", str(tmp_path / "cache")) as process:
        process.wait_for("ready: m")
        first = cached(process, "What is a cache?")
        assert first >= 2 * BLOCK
        captured = httpx.post(process.url + "/prewarm", json={"prompt": PROMPT}, timeout=300).raise_for_status().json()
        assert (captured["saved"], captured["usage"]["prompt_tokens"]) == (2, 300)
        answer, found = complete(process, PROMPT)
        assert found == 288
        for path in ("/models/unload", "/models/load"):
            httpx.post(process.url + path, json={"model": "m"}, timeout=300).raise_for_status()
        assert complete(process, PROMPT) == (answer, 288)
        assert metric(process, "hit_tokens_total") >= 288  # they were read from disk instead of computed
        assert cached(process, "And what is not?") == first
        assert process.stop() == 0
    with start_process(*flags) as process:
        process.wait_for("ready: m")
        assert complete(process, PROMPT) == (answer, 288)
        assert cached(process, "What else?") == first


def test_a_slot_is_saved_erased_and_restored_also_after_a_restart(tmp_path: Path) -> None:
    options = [*flags_of_hybrid(tmp_path / "model"), "--slot_save_path", str(tmp_path / "slots")]
    dice = random.Random(2)
    prompt = [dice.randrange(12, VOCAB) for _ in range(300)]

    def act(process: Process, action: str, slot: int = 1, **body: str) -> dict[str, object]:
        answer = httpx.post(f"{process.url}/slots/{slot}", params={"action": action}, json=body, timeout=300)
        found: dict[str, object] = answer.raise_for_status().json()
        return found

    with start_process(*options) as process:
        process.wait_for("ready: m")
        answer, _ = complete(process, prompt, id_slot=1)
        saved = act(process, "save", filename="a.bin")
        assert saved["n_saved"] == (len(prompt) + 19) // BLOCK * BLOCK
        assert act(process, "erase")["n_erased"] == saved["n_saved"]
        assert complete(process, prompt, id_slot=1) == (answer, 0)
        act(process, "erase")
        assert act(process, "restore", slot=2, filename="a.bin")["n_restored"] == saved["n_saved"]
        assert complete(process, prompt) == (answer, 288)
        assert process.stop() == 0
    file = tmp_path / "slots" / "a.bin"
    assert file.stat().st_mode & 0o777 == 0o600
    with start_process(*options) as process:
        process.wait_for("ready: m")
        restored = act(process, "restore", filename="a.bin")
        assert (restored["n_restored"], restored["n_read"]) == (saved["n_saved"], saved["n_written"])
        assert complete(process, prompt) == (answer, 288)
        data = bytearray(file.read_bytes())
        data[len(data) // 2] ^= 1
        file.write_bytes(data)
        wrong = httpx.post(f"{process.url}/slots/0", params={"action": "restore"}, json={"filename": "a.bin"})
        assert (wrong.status_code, wrong.json()["error"]["param"]) == (400, "filename")
        assert complete(process, prompt) == (answer, 288)
