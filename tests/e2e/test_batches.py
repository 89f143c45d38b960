"""Files and batches as OpenAI's client uses them, with a server that is killed meanwhile; and `lean-ovms run-batch`."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.e2e.conftest import PATIENT_S, Process, start_process

LINES = 120
POLL_S = 0.02


def line(number: int, model: str = "m") -> str:
    body = {"model": model, "messages": [{"role": "user", "content": f"say {number}"}], "max_tokens": 4}
    return json.dumps({"custom_id": str(number), "method": "POST", "url": "/v1/chat/completions", "body": body})


def server(files: Path) -> Process:
    process = start_process(
        *("--fake_engine", "--model_name", "m", "--plugin_config", '{"step_s": 0.01}', "--files_path", str(files)),
        "--access_log=false",
    )
    process.wait_for("ready: m")
    return process


def client_of(process: Process) -> openai.OpenAI:
    return openai.OpenAI(base_url=process.url + "/v1", api_key="none", max_retries=0, timeout=PATIENT_S)


def wait(client: openai.OpenAI, name: str, done: int = sys.maxsize) -> Any:
    """Returns the batch when a number of lines, or all, are done."""
    deadline = time.monotonic() + PATIENT_S
    while time.monotonic() < deadline:
        batch = client.batches.retrieve(name)
        if batch.status in ("completed", "failed", "expired", "cancelled"):
            return batch
        assert batch.request_counts
        if batch.request_counts.completed >= done:
            return batch
        time.sleep(POLL_S)
    raise AssertionError(batch)


@pytest.mark.slow
def test_stops_and_kills_lose_no_line_and_double_none(tmp_path: Path) -> None:
    source = tmp_path / "in.jsonl"
    source.write_text("".join(line(number) + "\n" for number in range(LINES)))
    process = server(tmp_path / "files")
    try:
        with client_of(process) as client:
            file = client.files.create(file=source, purpose="batch")
            batch = client.batches.create(
                input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h", metadata={"a": "b"}
            )
        for done, number in ((LINES // 5, signal.SIGKILL), (LINES // 2, signal.SIGTERM)):
            with client_of(process) as client:
                wait(client, batch.id, done)
            assert process.stop(number) in (0, -number)
            process.end()
            process = server(tmp_path / "files")
        with client_of(process) as client:
            batch = wait(client, batch.id)
            assert (batch.status, batch.metadata) == ("completed", {"a": "b"})
            assert batch.request_counts.model_dump() == {"total": LINES, "completed": LINES, "failed": 0}
            found = [json.loads(row)["custom_id"] for row in client.files.content(batch.output_file_id).iter_lines()]
        assert sorted(found, key=int) == [str(number) for number in range(LINES)]
        assert process.stop() == 0
        assert not any("Traceback" in text for text in process.lines)
    finally:
        process.end()


@pytest.mark.model
def test_run_batch(tmp_path: Path) -> None:
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text("".join(line(number, "demo") + "\n" for number in range(20)) + "no json\n" + line(20, "x"))
    command = [sys.executable, "-m", "lean_ovms", "run-batch", "-i", str(source), "-o", str(target)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENT_S, check=False)
    assert done.returncode == 0, done.stderr
    assert "20 answers, 2 errors" in done.stderr
    rows = [json.loads(row) for row in target.read_text().splitlines()]
    assert [row["custom_id"] for row in rows] == [*map(str, range(20)), None, "20"]
    assert all(row["response"]["body"]["choices"][0]["message"]["content"] for row in rows[:20])
    assert rows[20]["error"]["code"] == "invalid_json_line"
    assert rows[21]["response"]["status_code"] == 404
    same = subprocess.run([*command[:-1], str(source)], capture_output=True, text=True, timeout=PATIENT_S, check=False)
    assert (same.returncode, source.stat().st_size > 0) == (2, True)
    assert "the output file must not be the input file" in same.stderr
