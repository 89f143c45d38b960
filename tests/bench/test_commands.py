"""Every benchmark runs, on a small scale, and reports its figures."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from bench import __main__ as command
from bench import compare, front, parts, serve, start

Rows = list[dict]
ROOT = Path(__file__).parents[2]
SMALL = f"--model_path {ROOT / 'tests/data/llama_sp'}"
"""A model with one layer, which is loaded much faster than the demo model."""


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., Rows]:
    def runs(main, line: str) -> Rows:
        file = tmp_path / "lines"
        main([*line.split(), "--json", str(file)])
        header, *rows = map(json.loads, file.read_text().splitlines())
        assert header["cpu"]
        return rows

    return runs


def test_a_name_that_is_no_benchmark_lists_those_that_are(monkeypatch, capsys) -> None:
    monkeypatch.setattr("sys.argv", ["bench", "nothing"])

    assert command.run() == 2
    assert "serve" in capsys.readouterr().err


def test_parts(run) -> None:
    rows = run(parts.main, "--ms 0.1 --rounds 2")

    assert {"fields read (JSON included)", "a delta to a chunk"} <= {row["case"] for row in rows}
    assert all(0 < row["best_us"] <= row.get("median_us", row["best_us"]) for row in rows)


def test_front(run) -> None:
    rows = run(front.main, "--connections 2 --rounds 1 --seconds 0.05 --tokens 5 --step_ms 2")

    assert [row["case"] for row in rows if "connections" in row] == [
        "GET /health",
        "unary, 1 token",
        "stream, 5 tokens, no pause",
        "stream, a step every 2 ms",
    ]
    assert not any(row.get("failed") for row in rows)
    paced = next(row for row in rows if row["case"] == "stream, a step every 2 ms")
    assert paced["chunks_per_s"] > 0 < paced["chunks_per_s_per_core"]
    assert rows[-1]["lean_ovms"] > 0


@pytest.mark.model
def test_serve_against_the_limit(run) -> None:
    rows = run(serve.main, f"--rounds 1 --concurrency 2 --requests 4 --tokens 4 --ignore_eos {SMALL}")

    assert [row["who"] for row in rows] == ["limit", "lean_ovms"]
    assert all((row["requests"], row["tokens"], row["failed"]) == (4, 16, 0) for row in rows)
    assert rows[0]["prompt_tokens"] == rows[1]["prompt_tokens"]
    assert rows[1]["ratio"]["median"] > 0
    assert set(rows[1]["cpu_s_per_1000_tokens"]) == {"front", "engine", "client"}


@pytest.mark.model
def test_compare_with_a_rival_that_is_there_and_one_that_is_not(run, capfd) -> None:
    pytest.importorskip("fastapi")
    few = "--rounds 1 --concurrency 2 --rate 40 --requests 2 --tokens 4"

    rows = run(compare.main, f"{few} --rival plain --rival vllm --program vllm=/none")

    raced, once = rows[:8], rows[8:]
    names = ["bare: GenAI", "bare: paged", "lean_ovms", "plain"]
    assert [row["who"] for row in raced] == names * 2
    assert [row["who"] for row in once] == names
    for case in (raced[:4], raced[4:]):  # each has its own prompts
        assert {row["prompt_tokens"] for row in case} == {case[0]["prompt_tokens"]}
    assert not any(row["failed"] for row in raced)
    assert all(row["tokens"] == 8 for row in raced if row["who"] != "plain")
    assert sum("ratio" not in row for row in raced) == 2  # each case has one limit
    assert once[2]["start_s"] > 0
    out = capfd.readouterr().out
    assert "vllm is left out: not installed" in out
    assert out.count("\n| 2 streams ") == 4


@pytest.mark.model
def test_start(run) -> None:
    rows = run(start.main, f"--rounds 1 --idle_s 0.3 {SMALL}")

    first = rows[0]
    assert 0 < first["listening_s"] <= first["ready_s"] <= first["first_token_s"]
    assert first["idle_cpu_share"] >= 0
    assert first["front_rss_mb"] < first["engine_rss_mb"]
