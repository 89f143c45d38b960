"""The figures that benchmarks report are computed correctly."""

from __future__ import annotations

import argparse
import json
import random
import statistics
from itertools import pairwise

import numpy as np
import pytest

from bench import figures
from bench.client import Lane, payload
from bench.race import Lap, against
from bench.work import Outcome, poisson, prompts, turns


@pytest.mark.parametrize("count", [1, 2, 10, 99, 100, 101, 1000])
@pytest.mark.parametrize("mark", [0.5, 0.9, 0.99, 1.0])
def test_quantiles_are_numpys_nearest_rank(count: int, mark: float) -> None:
    values = [random.Random(count).gauss(0, 1) for _ in range(count)]

    assert figures.quantile(values, mark) == np.quantile(values, mark, method="inverted_cdf")


def test_quantiles_are_in_milliseconds_and_empty_without_values() -> None:
    shown = figures.quantiles([n / 1e3 for n in range(1, 101)])

    assert shown == {"p50": 50, "p90": 90, "p99": 99, "max": 100}
    assert figures.quantiles([]) == {}
    assert figures.quantile([], 0.5) == 0


def test_ratios_are_taken_round_by_round() -> None:
    """If the machine becomes ten times slower for all contestants, no ratio changes."""
    assert figures.ratios([90, 9, 0.9], [100, 10, 1.0]) == {"median": 0.9, "low": 0.9, "high": 0.9}
    assert figures.added([0.0011, 0.0032], [0.001, 0.003]) == {"median": 0.15, "low": 0.1, "high": 0.2}


def test_prompts_and_arrivals_are_the_same_for_the_same_seed_only() -> None:
    assert prompts(1, 20, 40, 0.2) == prompts(1, 20, 40, 0.2)
    assert not set(prompts(1, 20, 40)) & set(prompts(2, 20, 40))
    assert poisson(1, 20, 5.0) == poisson(1, 20, 5.0) != poisson(2, 20, 5.0)


def test_prompts_differ_from_their_first_word_on_and_have_about_the_length_asked_for() -> None:
    texts = prompts(3, 50, 40, 0.5)

    assert len({text.split()[0] for text in texts}) == 50
    assert {20 <= len(text.split()) - 1 <= 60 for text in texts} == {True}


def test_arrivals_are_a_poisson_process_of_the_rate() -> None:
    """The gaps are exponential: mean and standard deviation are both one over the rate."""
    times = poisson(1, 20_000, 50.0)
    gaps = [b - a for a, b in zip([0.0, *times], times, strict=False)]

    assert times == sorted(times)
    assert statistics.mean(gaps) == pytest.approx(1 / 50, rel=0.03)
    assert statistics.stdev(gaps) == pytest.approx(1 / 50, rel=0.03)


def test_every_contestant_has_its_turn_in_every_round_and_none_is_always_first() -> None:
    order = list(turns(["a", "b", "c"], 4))

    assert order[:6] == [(0, "a"), (0, "b"), (0, "c"), (1, "c"), (1, "b"), (1, "a")]
    assert sorted(order) == [(number, name) for number in range(4) for name in "abc"]


def test_a_requests_time_per_token_leaves_the_first_out() -> None:
    outcome = Outcome(wall_s=2.0, first=[0.5, 0.2], total=[1.5, 0.2], tokens=[11, 1])

    assert outcome.tpot == [pytest.approx(0.1)]
    assert outcome.tokens_per_s == 6


def test_differences_are_taken_within_rounds() -> None:
    ours = Lap(outcomes=[Outcome(wall_s=2.0, first=[0.003], total=[0.013], tokens=[11])])
    limit = Lap(outcomes=[Outcome(wall_s=1.0, first=[0.002], total=[0.0115], tokens=[11])])

    shown = against(ours, limit)

    assert shown["ratio"]["median"] == 0.5
    assert shown["ttft_added_ms"]["median"] == 1.0
    assert shown["ttft_added_p99_ms"] == 1.0
    assert shown["itl_added_us"]["median"] == pytest.approx(50)


class Wire:
    """A socket with data to read."""

    def __init__(self, *pieces: bytes) -> None:
        self.pieces = list(pieces)
        self.sent = b""

    def recv(self, size: int) -> bytes:
        return self.pieces.pop(0)

    def sendall(self, data: bytes) -> None:
        self.sent += data


def lane(*pieces: bytes) -> tuple[Lane, Wire]:
    wire = Wire(*pieces)
    one = Lane.__new__(Lane)
    one.sock, one.target, one.used = wire, "/chat", 0  # type: ignore[assignment]
    one.send(b"request", 0.0)
    return one, wire


STREAM = b"".join(
    [
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
        b'40\r\ndata: {"choices":[{"delta":{"role":"assistant","content":""}}]}\n\n\r\n',
        b'40\r\ndata: {"choices":[{"delta":{"content":"Hi"}}]}\n\n\r\n',
        b'40\r\ndata: {"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":3}}\n\n\r\n',
        b"0\r\n\r\n",
    ]
)


@pytest.mark.parametrize("cuts", [[], [70], [70, 140], [60, 120, 180, len(STREAM) - 3]])
def test_the_client_finds_the_end_and_the_usage_however_a_stream_is_cut(cuts: list[int]) -> None:
    bounds = [0, *cuts, len(STREAM)]
    one, _ = lane(*(STREAM[a:b] for a, b in pairwise(bounds)))
    gaps: list[float] = []

    ends = [one.take(gaps) for _ in range(len(bounds) - 1)]
    outcome = Outcome()
    one.note(outcome)

    assert ends == [False] * len(cuts) + [True]
    assert (outcome.tokens, outcome.prompt_tokens, outcome.failed) == ([3], 7, 0)


def test_the_first_token_is_the_first_content_and_not_the_role() -> None:
    head, role, content, *rest = (
        STREAM.partition(b"\r\n\r\n")[0],
        *STREAM.partition(b"\r\n\r\n")[2].split(b"\r\n40\r\n"),
    )
    one, _ = lane(head + b"\r\n\r\n" + role, b"\r\n40\r\n" + content, b"\r\n".join(rest))

    one.take([])
    assert one.first == 0
    one.take([])
    assert one.first > 0


def test_the_client_knows_a_sized_answer_and_a_failed_one() -> None:
    one, wire = lane(b"HTTP/1.1 503 No\r\nContent-Length: 4\r\n\r\nab", b"cd")
    outcome = Outcome()

    assert [one.take([]), one.take([])] == [False, True]
    one.note(outcome)
    assert (outcome.failed, wire.sent) == (1, b"request")


def test_a_payload_is_a_whole_request() -> None:
    head, _, body = payload("/x", {"a": 1}).partition(b"\r\n\r\n")

    assert head.startswith(b"POST /x HTTP/1.1\r\nHost: bench\r\n")
    assert int(head.rpartition(b": ")[2]) == len(body)
    assert json.loads(body) == {"a": 1}
    assert payload("/x", None) == b"GET /x HTTP/1.1\r\nHost: bench\r\n\r\n"


def test_a_report_writes_json_lines_with_the_machine_first_and_a_table(tmp_path, capsys) -> None:
    from bench.report import Report

    file = tmp_path / "lines"
    report = Report("x", argparse.Namespace(json=str(file), seed=4))
    report.row(case="a", value=1)

    header, row = map(json.loads, file.read_text().splitlines())

    assert {"cpu", "cores", "load", "python", "openvino-genai", "commit"} <= header.keys()
    assert (header["bench"], header["flags"]) == ("x", {"seed": 4})
    assert row == {"bench": "x", "case": "a", "value": 1}
    capsys.readouterr()
    spread, marks = {"median": 2.0, "low": 1.0, "high": 3.0}, {"p50": 1, "p99": 3}
    report.table("some", ("who", "per_s", "ms"), [{"who": "x", "per_s": spread, "ms": marks}])
    assert capsys.readouterr().out == (
        "\nsome\n\n| who | per s      | ms  |\n| --- | ---        | --- |\n| x   | 2 (1 to 3) | 1/3 |\n"
    )
