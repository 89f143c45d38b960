"""Measures whether the engine blocks the server: the longest pauses of the event loop, and the latency of /health,
while a long prompt is computed and while many streams run.

A timer fires every one or two milliseconds in the server's own event loop (ticking.py); a longer pause is a stall.
loop_cpu_ms is the CPU time of all threads of the server in the same pauses, which is how long they would be on an idle
machine. /health is requested every 2 ms on a keep-alive connection.
"""

from __future__ import annotations

import random
import socket
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial

from bench import figures, race
from bench.client import payload
from bench.processes import Worker, closing, free_port
from bench.report import Report, options
from bench.work import Work, prompts

HEALTH = payload("/health", None)
PATH = "/v3/chat/completions"


def main(argv: Sequence[str]) -> None:
    """Measures an idle server, prefill and streams."""
    parser = options("stall", __doc__)
    race.add_options(parser)
    parser.set_defaults(rounds=3)
    parser.add_argument("--prompt_tokens", type=int, default=4000, help="length of the long prompt")
    parser.add_argument("--streams", type=int, default=64, help="how many at once")
    args = parser.parse_args(argv)
    report = Report("stall", args)
    port = free_port()
    listen = ["--rest_port", str(port), "--rest_bind_address", "127.0.0.1", "--log_level", "WARNING"]
    server, load = Worker("ticking", *listen, *race.server_options(args)), Worker("client")
    deeds = {"warm-up": lambda _: streams(load, port, args, 4), "idle": lambda _: time.sleep(1.0)}
    rounds = {
        f"prefill of {args.prompt_tokens}": lambda number: prefill(port, args, number),
        f"{args.streams} streams": lambda _: streams(load, port, args, args.streams),
    }
    turns = [*((name, 0, deed) for name, deed in deeds.items())]
    turns += [(name, number, deed) for name, deed in rounds.items() for number in range(args.rounds)]
    with closing(server, load), socket.create_connection(("127.0.0.1", port)) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for name, number, deed in turns:
            report.doing(name)
            during(report, server, sock, name, partial(deed, number))
    del report.rows[0]
    report.table("pauses between the ticks of a clock in the event loop, and /health: p50/p90/p99/max in ms", COLUMNS)


COLUMNS = ("case", "took_ms", "loop_pause_ms", "loop_cpu_ms", "health_ms", "samples")


def during(report: Report, server: Worker, sock: socket.socket, case: str, deed: Callable[[], object]) -> None:
    """Reports a row for an activity, with the pauses of the server's event loop and the latency of /health
    meanwhile."""
    server.ask({})
    began = time.perf_counter()
    doing = threading.Thread(target=deed)
    doing.start()
    health = []
    while doing.is_alive():
        asked = time.perf_counter()
        sock.sendall(HEALTH)
        answer = sock.recv(1 << 16)
        health.append(time.perf_counter() - asked)
        assert answer.startswith(b"HTTP/1.1 200"), answer[:40]
        time.sleep(0.002)
    took = time.perf_counter() - began
    seen = server.ask({})
    pauses, cpu = figures.quantiles(seen["pauses"]), figures.quantiles(seen["cpu"])  # type: ignore[arg-type]
    times = {"took_ms": round(took * 1e3), "loop_pause_ms": pauses, "loop_cpu_ms": cpu}
    report.row(case=case, **times, health_ms=figures.quantiles(health), samples=len(health))


def prefill(port: int, args, number: int) -> None:
    """Sends one long prompt that no cache holds, as token ids that every vocabulary has, for one generated token."""
    rng = random.Random(args.seed * 101 + number)
    ids = [rng.randrange(100, 1000) for _ in range(args.prompt_tokens)]
    body = {"model": "demo", "prompt": ids, "max_tokens": 1, "temperature": 0}
    with socket.create_connection(("127.0.0.1", port)) as sock:
        sock.sendall(payload("/v3/completions", body))
        answer = sock.recv(1 << 16)
        assert answer.startswith(b"HTTP/1.1 200"), answer[:200]


def streams(load: Worker, port: int, args, count: int) -> None:
    """Runs `count` chats at once."""
    fields = {"model": "demo", **({"ignore_eos": True} if args.ignore_eos else {})}
    work = Work(prompts=prompts(args.seed, count, args.words, 0.2), max_tokens=args.tokens, concurrency=count)
    outcome = load.run(work, port=port, path=PATH, fields=fields)
    assert not outcome.failed
