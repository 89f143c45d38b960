"""Measures a start: the time to listening, to ready and to the first token, and memory and CPU time when idle.

Each round starts the command line as a user does, with the embedded model unless another is given. The first round does
not count, because files may not be in memory yet. With --words N the first prompt is that long and the same in all
rounds, so that with --server_option prefix_cache_path=DIR it is read from disk.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence

from bench import figures, race
from bench.client import chat, payload
from bench.processes import ROOT, CpuTimes, children, family, free_port, get, rss_mb
from bench.report import Report, options
from bench.work import prompts


def main(argv: Sequence[str]) -> None:
    """Reports a row for each round, then the medians."""
    parser = options("start", __doc__)
    parser.add_argument("--rounds", type=int, default=5)
    race.add_server_options(parser)
    parser.add_argument("--words", type=int, default=1, help="words of the prompt")
    parser.add_argument("--idle_s", type=float, default=2.0, help="how long the idle server is measured")
    args = parser.parse_args(argv)
    report, [prompt] = Report("start", args), prompts(args.seed, 1, args.words)
    rounds = []
    for number in range(args.rounds + 1):
        report.doing(f"start {number}")
        seen = once(race.server_options(args), prompt, args.idle_s)
        if number:
            rounds.append(seen)
            report.row(case=f"start {number}", **{name: round(value, 4) for name, value in seen.items()})
    middle = {name: figures.spread([seen[name] for seen in rounds]) for name in rounds[0]}
    for name, value in middle.items():
        report.row(case=name, value=value)
    shown = report.rows[-len(middle) :]
    report.table("from the command to …, in seconds; what an idle server takes", ("case", "value"), shown)


def once(chosen: Sequence[str], prompt: str, idle_s: float) -> dict[str, float]:
    """Measures one start from outside."""
    port = free_port()
    listen = ["--rest_port", str(port), "--rest_bind_address", "127.0.0.1", "--log_level", "WARNING"]
    # With bytecode files, which pip makes when it installs. Without them a start takes 130 ms more CPU time.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    began = time.perf_counter()
    server = subprocess.Popen([sys.executable, "-m", "lean_ovms", *listen, *chosen], cwd=ROOT, env=environment)

    def until(true: Callable[[], bool]) -> float:
        while not true():
            if server.poll() is not None:
                raise SystemExit(f"the server ended with status {server.returncode}")
            time.sleep(0.003)
        return time.perf_counter() - began

    try:
        seen = {"listening_s": until(lambda: connects(port))}
        seen["ready_s"] = until(lambda: get(port, "/v2/health/ready") == 200)
        seen["first_token_s"] = first_token(port, prompt) - began
        time.sleep(0.3)
        engine = children(server.pid)[0]
        accounts = CpuTimes({str(pid): pid for pid in family(server.pid)})
        time.sleep(idle_s)
        seen["idle_cpu_share"] = sum(accounts.since().values()) / idle_s
        seen["front_rss_mb"], seen["engine_rss_mb"] = rss_mb(server.pid), rss_mb(engine)
        return seen
    finally:
        server.terminate()
        server.wait(30)


def connects(port: int) -> bool:
    """Returns whether a port accepts connections."""
    with socket.socket() as sock:
        return sock.connect_ex(("127.0.0.1", port)) == 0


def first_token(port: int, prompt: str) -> float:
    """Sends a chat, and returns the time at which the first bytes of the response arrived."""
    with socket.create_connection(("127.0.0.1", port)) as sock:
        sock.sendall(payload("/v3/chat/completions", chat(prompt, 1, {"model": "demo"})))
        answer = sock.recv(1 << 16)
        assert answer.startswith(b"HTTP/1.1 200"), answer[:200]
        return time.perf_counter()
