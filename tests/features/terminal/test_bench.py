"""lean-ovms bench: the arithmetic of the report, and a small load."""

from __future__ import annotations

import json
import re
from collections import deque

import pytest

from lean_ovms.cli.commands import commands
from lean_ovms.cli.main import run_command
from lean_ovms.features.terminal.bench import Timing, percentile, report, results
from tests.cli.scripted import ScriptedServer

COMPLETIONS = "/v1/completions"


def numbers(text: str) -> dict[str, float]:
    """Returns the lines of a report."""
    return {name: float(value) for name, value in re.findall(r"^(\S.*?): +([\d.]+)$", text, re.MULTILINE)}


def test_the_report() -> None:
    timings = [
        Timing(first=0.1, last=0.4, pieces=[0.1, 0.2], prompt_tokens=10, tokens=4),
        Timing(first=0.3, last=0.3, prompt_tokens=10, tokens=1),
        Timing(error="503"),
    ]
    text = report(results(timings, 2.0, 3))
    assert all(len(line) <= 50 for line in text.splitlines())
    assert numbers(text) == {
        "Successful requests": 2,
        "Failed requests": 1,
        "Maximum request concurrency": 3,
        "Benchmark duration (s)": 2.0,
        "Total input tokens": 20,
        "Total generated tokens": 5,
        "Request throughput (req/s)": 1.0,
        "Output token throughput (tok/s)": 2.5,
        "Total token throughput (tok/s)": 12.5,
        "Mean TTFT (ms)": 200,
        "Median TTFT (ms)": 200,
        "P99 TTFT (ms)": 298,
        "Mean TPOT (ms)": 100,
        "Median TPOT (ms)": 100,
        "P99 TPOT (ms)": 100,
        "Mean ITL (ms)": 150,
        "Median ITL (ms)": 150,
        "P99 ITL (ms)": 199,
    }


def test_percentiles_are_numpys() -> None:
    numpy = pytest.importorskip("numpy")
    values = sorted([5.0, 1.0, 2.5, 9.0, 4.0])
    for share in (0, 0.5, 0.9, 0.99, 1):
        assert percentile(values, share) == pytest.approx(numpy.percentile(values, 100 * share))


def test_a_load(script: ScriptedServer, capsys: pytest.CaptureFixture[str]) -> None:
    events = [{"choices": [{"text": text}]} for text in ("a", "b", "")]
    usage = {"choices": [], "usage": {"prompt_tokens": 4, "completion_tokens": 2}}
    script.answers[COMPLETIONS] = deque([[*events, usage]])
    argv = ["serve", script.url, "--num-prompts", "5", "--max-concurrency=2", "--random-input-len", "4"]
    assert run_command(commands()["bench"], argv, {}) == 0
    found = numbers(capsys.readouterr().out)
    assert (found["Successful requests"], found["Total input tokens"], found["Total generated tokens"]) == (5, 20, 10)
    assert len(script.bodies) == 6  # one was for warming up
    assert len({tuple(body["prompt"]) for body in script.bodies}) == 6
    assert script.bodies[0]["max_tokens"] == 64
    assert run_command(commands()["bench"], [script.url, "--num-prompts", "2", "--json"], {}) == 0
    measured = json.loads(capsys.readouterr().out)
    assert (measured["completed"], measured["total_output_tokens"], measured["mean_ttft_ms"] > 0) == (2, 4, True)


def test_failed_requests_are_counted(script: ScriptedServer, capsys: pytest.CaptureFixture[str]) -> None:
    good = [{"choices": [{"text": "a"}], "usage": {"prompt_tokens": 4, "completion_tokens": 1}}]
    busy = (503, {"error": {"message": "busy"}})
    script.answers[COMPLETIONS] = deque([good, good, busy])
    assert run_command(commands()["bench"], [script.url, "--num_prompts", "3"], {}) == 1
    output = capsys.readouterr()
    assert (numbers(output.out)["Failed requests"], output.err) == (
        2,
        "lean_ovms bench: 503 Service Unavailable: busy\n",
    )
    assert run_command(commands()["bench"], [script.url], {}) == 1
    assert capsys.readouterr() == ("", "lean_ovms bench: 503 Service Unavailable: busy\n")
