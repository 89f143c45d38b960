"""How long `/health` takes while a long prompt is in prefill on the embedded model: nobody waits for the engine.

One connection asks /health again and again, first on an idle server, then while another one has a long prompt
computed. The prompt differs each round, so that the prefix cache has nothing to offer.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
from collections.abc import Sequence

from .client import Connection, connect, payload, quantiles
from .common import emit, header, server

HEALTH = payload("/health", None)


async def main(argv: Sequence[str]) -> None:
    """Idle, then busy."""
    args = options().parse_args(argv)
    emit(args.json, header(bench="stall", tokens=args.tokens, rounds=args.rounds, seed=args.seed))
    chosen = ["--model_path", args.model_path, "--model_name", "demo"] if args.model_path else []
    async with server(*chosen) as running:
        asking, working = await connect(running.port), await connect(running.port)
        await health_until(asking, asyncio.create_task(asyncio.sleep(0.5)))
        idle = await health_until(asking, asyncio.create_task(asyncio.sleep(2.0)))
        emit(args.json, {"case": "idle", "health_ms": quantiles(idle), "samples": len(idle)})
        rng = random.Random(args.seed)
        for number in range(args.rounds):
            body = {"model": "demo", "prompt": prompt(rng, args.tokens), "max_tokens": 1, "temperature": 0}
            prefill = asyncio.create_task(working.request(payload("/v3/completions", body)))
            times = await health_until(asking, prefill)
            figures = {
                "case": f"prefill {number + 1}",
                "status": prefill.result().status,
                "prefill_ms": round(prefill.result().total_s * 1e3, 1),
                "health_ms": quantiles(times),
                "samples": len(times),
            }
            emit(args.json, figures)
        asking.close()
        working.close()


def options() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m bench stall", description=__doc__)
    parser.add_argument("--tokens", type=int, default=4000, help="length of the prompt")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--model_path", default="", help="another model than the embedded one")
    parser.add_argument("--json", action="store_true", help="JSON lines instead of a table")
    return parser


def prompt(rng: random.Random, tokens: int) -> list[int]:
    """Token ids that every vocabulary has and no cache knows."""
    return [rng.randrange(100, 1000) for _ in range(tokens)]


async def health_until(asking: Connection, done: asyncio.Task) -> list[float]:
    """Ask every 2 ms until the task is done; the seconds that each answer took."""
    times = []
    while not done.done():
        exchange = await asking.request(HEALTH)
        assert exchange.status == 200, json.dumps({"health": exchange.status})
        times.append(exchange.total_s)
        await asyncio.sleep(0.002)
    return times
