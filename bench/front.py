"""The front end on the scripted engine: what HTTP, JSON, templates, detokenizing and the engine's pipe cost.

The engine child takes no time (or a fixed one per step), so every millisecond here is the server's own. Client, front
end and engine are three processes; CPU time is read from each, so the cost per request and per chunk is the front
end's alone also where cores are few.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from dataclasses import replace

from lean_ovms.config import Config
from lean_ovms.engine.client import Engine
from lean_ovms.shapes import Sampling

from .client import Result, Spec, quantiles
from .common import ServerUnderTest, emit, header, load, server

PATH = "/v3/chat/completions"
CHAT: dict[str, object] = {"model": "demo", "temperature": 0}
ANSWER = "All happy families are alike; each unhappy family is unhappy in its own way. " * 20
STREAM_TOKENS = 200
WARM_UP_S = 0.5


async def main(argv: Sequence[str]) -> None:
    """The whole table."""
    args = options().parse_args(argv)
    counts = [int(n) for n in args.connections.split(",")]
    emit(args.json, header(bench="front", seconds=args.seconds, seed=args.seed))
    free_running = {"answer": ANSWER}
    paced = {"answer": ANSWER, "step_s": args.step_ms / 1e3}
    emit(args.json, {"case": "pipe only, 1 token", "total_ms": await pipe_only(args.seconds)})
    async with scripted(free_running) as running:
        await case(args, running, "GET /health", "/health", None, counts)
        await case(args, running, "unary, 1 token", PATH, {**CHAT, "max_tokens": 1}, counts)
        body = {**CHAT, "max_tokens": STREAM_TOKENS, "stream": True}
        await case(args, running, f"stream, {STREAM_TOKENS} tokens, no pause", PATH, body, counts)
    async with scripted(paced) as running:
        body = {**CHAT, "max_tokens": STREAM_TOKENS // 4, "stream": True}
        await case(args, running, f"stream, a step every {args.step_ms:g} ms", PATH, body, counts)


def options() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m bench front", description=__doc__)
    parser.add_argument("--seconds", type=float, default=3.0, help="per case and number of connections")
    parser.add_argument("--connections", default="1,8,64,256", help="numbers of connections, separated by commas")
    parser.add_argument("--step_ms", type=float, default=20.0, help="step time of the paced case")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true", help="JSON lines instead of a table")
    return parser


def scripted(script: dict[str, object]):
    """A server whose engine plays this script and takes as many at once as come, prompts in one step."""
    plugin = json.dumps({"blocks": 1 << 20, **script})
    wide = ["--max_queued_requests", "4096", "--max_num_seqs", "1024", "--max_num_batched_tokens", str(1 << 20)]
    return server("--fake_engine", "true", "--plugin_config", plugin, *wide)


async def case(
    args: argparse.Namespace, running: ServerUnderTest, name: str, path: str, body: dict | None, counts: list[int]
) -> None:
    """One row per number of connections; warmed up at each."""
    for count in counts:
        spec = Spec(running.port, path, body, count, args.seconds, args.seed)
        await load(replace(spec, seconds=WARM_UP_S))
        before = running.cpu_s()
        result = await load(spec)
        front, engine = (now - then for now, then in zip(running.cpu_s(), before, strict=True))
        emit(args.json, row(name, count, result, front, engine))


def row(name: str, count: int, result: Result, front_cpu_s: float, engine_cpu_s: float) -> dict[str, object]:
    """Figures of one run. per core: what one core does when the front end has it to itself."""
    chunks = result.events
    figures: dict[str, object] = {
        "case": name,
        "connections": count,
        "requests_per_s": round(result.requests / result.wall_s),
        "failed": result.failed,
        "front_us_per_request": round(front_cpu_s / result.requests * 1e6),
        "requests_per_s_per_core": round(result.requests / max(front_cpu_s, 0.01)),
        "total_ms": result.total_ms,
        "cpu": {
            "front": round(front_cpu_s / result.wall_s, 2),
            "engine": round(engine_cpu_s / result.wall_s, 2),
            "client": round(result.client_cpu_s / result.wall_s, 2),
        },
    }
    if chunks:
        figures |= {
            "chunks_per_s": round(chunks / result.wall_s),
            "front_us_per_chunk": round(front_cpu_s / chunks * 1e6, 1),
            "chunks_per_s_per_core": round(chunks / max(front_cpu_s, 0.01)),
            "chunks_per_request": round(chunks / result.requests, 1),
            "first_ms": result.first_ms,
            "gap_ms": result.gap_ms,
        }
    return figures


async def pipe_only(seconds: float) -> dict[str, float]:
    """The same one-token request on the engine's pipe alone, one after the other: what HTTP and JSON are added to."""
    engine = Engine(Config(fake_engine=True, plugin_config=json.dumps({"answer": ANSWER})))
    await engine.start()
    sampling = Sampling(max_tokens=1, temperature=0.0)
    times = []
    end = time.perf_counter() + seconds
    while (began := time.perf_counter()) < end:
        reply = await engine.submit(
            "<|user|>hello", add_special_tokens=False, truncate=None, want_tokens=False, sampling=sampling
        )
        while await reply.next():
            pass
        times.append(time.perf_counter() - began)
    await engine.stop()
    return quantiles(times[len(times) // 10 :])
