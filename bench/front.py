"""Measures the front end with a scripted engine: the cost of HTTP, JSON, templates, detokenizing and the engine's pipe.

The engine process takes no time, or a fixed time per step, so all that is measured is the server's own. Client, front
end and engine are three processes, and the CPU time of each is read. So the cost per request and per chunk is that of
the front end alone, even on a machine with few cores. RESULTS.md has what Starlette on uvicorn needs for the same
chunks.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence

from bench import figures
from bench.processes import CpuTimes, Server, Worker, closing, lean_ovms
from bench.report import Report, options
from bench.work import Outcome, Work, prompts

PATH = "/v3/chat/completions"
ANSWER = "All happy families are alike; each unhappy family is unhappy in its own way. " * 20
MANY = 64
"""With more connections than this, the steps of paced streams are longer, so that no process is saturated."""


def main(argv: Sequence[str]) -> None:
    """Runs all cases and prints the tables."""
    parser = options("front", __doc__)
    parser.add_argument("--connections", default="1,8,64,256,1000", help="numbers of connections, separated by commas")
    parser.add_argument("--tokens", type=int, default=100, help="tokens of a stream")
    parser.add_argument("--step_ms", type=float, default=5.0, help="of paced streams; 5 times that above 64 of them")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=2.0, help="duration of a case and round, unless paced")
    args = parser.parse_args(argv)
    report = Report("front", args)
    counts = [int(n) for n in args.connections.split(",")]
    requests(args, report, counts)
    streams(args, report, counts)
    report.table("requests and streams, scripted engine", SPEED)
    report.table("what it costs the front end: CPU seconds per second by process, and per request or chunk", COST)
    most = best(report)
    report.row(case="chunks per second and core", lean_ovms=most)
    report.say(f"chunks per second and core, best of the cases: {most}")


SPEED = ("case", "connections", "requests_per_s", "chunks_per_s", "total_ms", "first_ms", "gap_ms", "failed")
COST = ("case", "connections", "cpu", "front_us_per_request", "front_us_per_chunk", "chunks_per_s_per_core")


def best(report: Report) -> int:
    """Returns the most chunks per second and core among the paced streams."""
    rows = [row for row in report.rows if str(row["case"]).startswith("stream, a step")]
    return max((row["chunks_per_s_per_core"] for row in rows), default=0)  # type: ignore[type-var]


def requests(args: argparse.Namespace, report: Report, counts: list[int]) -> None:
    """Measures unary requests, and streams without pauses, at full speed."""
    kinds = (
        ("GET /health", {"get": True}, 1),
        ("unary, 1 token", {"fields": {"model": "demo", "stream": False, "stream_options": None}}, 1),
        (f"stream, {args.tokens} tokens, no pause", {"fields": {"model": "demo"}}, args.tokens),
    )
    server, load = scripted({"answer": ANSWER}), Worker("client")
    with closing(server, load):
        for name, more, tokens in kinds:
            for count in counts:
                run = Run(load, server, tokens, more)
                report.doing(f"{name}, {count} connections")
                report.row(**run.case(args, name, count, args.seconds))


def streams(args: argparse.Namespace, report: Report, counts: list[int]) -> None:
    """Measures paced streams, in which each token is sent as a chunk of its own."""
    few, many = [n for n in counts if n <= MANY], [n for n in counts if n > MANY]
    for step_ms, some in ((args.step_ms, few), (5 * args.step_ms, many)):
        if not some:
            continue
        server, load = scripted({"answer": ANSWER, "step_s": step_ms / 1e3}), Worker("client")
        name = f"stream, a step every {step_ms:g} ms"
        with closing(server, load):
            for count in some:
                run = Run(load, server, args.tokens, {"fields": {"model": "demo"}})
                report.row(**run.case(args, name, count, 1e-9))


class Run:
    """Sends one kind of request to one server."""

    def __init__(self, load: Worker, server: Server, tokens: int, more: dict[str, object]) -> None:
        self._load, self._server, self._tokens = load, server, tokens
        self._more = {"port": server.port, "path": PATH, **more}
        if more.get("get"):
            self._more["path"] = "/health"

    def case(self, args: argparse.Namespace, name: str, count: int, seconds: float) -> dict[str, object]:
        """Returns the row for a number of connections, over all rounds, after a warm-up."""
        self._once(count, 1e-9)
        pids = {**self._server.pids, "client": self._load.pid}
        total, cpu = Outcome(), dict.fromkeys(pids, 0.0)
        for _ in range(args.rounds):
            accounts = CpuTimes(pids)
            total.add(self._once(count, seconds))
            cpu = {role: cpu[role] + seconds for role, seconds in accounts.since().items()}
        return {"case": name, "connections": count, **summary(total, cpu)}

    def _once(self, count: int, seconds: float) -> Outcome:
        texts = prompts(count, 64, 12, 0.5) * (count // 64 + 1 + round(seconds * 500))
        work = Work(prompts=texts, max_tokens=self._tokens, concurrency=count, seconds=seconds)
        return self._load.run(work, **self._more)


def summary(total: Outcome, cpu: dict[str, float]) -> dict[str, object]:
    """Returns the figures of one case. "Per core" means per second of the front end's CPU time."""
    done = len(total.total)
    figures_: dict[str, object] = {
        "requests_per_s": round(done / total.wall_s),
        "failed": total.failed,
        "front_us_per_request": round(cpu["front"] / done * 1e6),
        "total_ms": figures.quantiles(total.total),
        "cpu": {role: round(seconds / total.wall_s, 2) for role, seconds in cpu.items()},
    }
    if total.events > done:
        figures_ |= {
            "chunks_per_s": round(total.events / total.wall_s),
            "front_us_per_chunk": round(cpu["front"] / total.events * 1e6, 1),
            "chunks_per_s_per_core": round(total.events / max(cpu["front"], 1e-3)),
            "first_ms": figures.quantiles(total.first),
            "gap_ms": figures.quantiles(total.gaps),
        }
    return figures_


def scripted(script: dict[str, object]) -> Server:
    """Starts a server whose engine plays a script, with an unlimited batch and each prompt prefilled in one step."""
    plugin = json.dumps({"blocks": 1 << 20, **script})
    wide = ["--max_queued_requests", "4096", "--max_num_seqs", "2048", "--max_num_batched_tokens", str(1 << 20)]
    wide += ["--max_connections", "4096"]
    return lean_ovms(["--fake_engine", "true", "--model_name", "demo", "--plugin_config", plugin, *wide])
