"""Runs a soak and chaos test: a server under mixed load for minutes or hours, with disconnects, slow readers, hostile
clients, killed engines and reloads.

    python -m tools.soak --minutes 20 --out soak

A ledger checks that each request has exactly one outcome and that every text is right. The results are written to
soak.json. The exit status is 1 if there was a violation. Needs Linux.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bench.figures import quantiles
from tools.soaking.cases import CASES, Case, streamed, whole
from tools.soaking.client import Connection, Manner
from tools.soaking.hostile import Hostile
from tools.soaking.ledger import AFTERMATH_S, Ledger
from tools.soaking.server import READY_S, Server
from tools.soaking.watch import Sample, Watch, engines

PATIENCE_S = 200.0
"""Seconds after which a request without an end counts as lost. More than --request_timeout_s."""
CALM_S = 30.0
"""Seconds after the load within which the server must be idle."""
HOSTILE, POLITE = "10.9.9.1", "10.9.9.2"
"""The addresses of two clients, as a trusted proxy would name them. All other clients have the peer's address."""
GROWTH_MB = 40.0
"""By how much the front end's memory may grow between the first third of a run and its end."""


class Soak:
    """One run of the test."""

    def __init__(self, options: argparse.Namespace, server: Server, ledger: Ledger) -> None:
        self.options = options
        self.server = server
        self.ledger = ledger
        self.random = random.Random(options.seed)
        self.end = 0.0
        self.firsts: list[float] = []
        self.recoveries: list[float] = []
        self.polite: list[float] = []
        self.hostile = [
            Hostile(server.port, HOSTILE, ledger, random.Random(number), PATIENCE_S)
            for number in range(options.hostile)
        ]

    async def quiet_run(self) -> None:
        """Records the answer to each case, unary and streamed, without any other load."""
        line = Connection(self.server.port)
        for case in CASES:
            for stream in (False, True) if case.streams else (False,):
                seen = await line.ask("POST", case.path, _body(case, "demo", stream), "quiet", Manner(), PATIENCE_S)
                said = streamed(case, seen.body) if stream else whole(case, seen.body)
                known = self.ledger.expected.setdefault(case.name, said)
                if seen.status != 200 or said.choices != known.choices:
                    self.ledger.violate(f"quiet {case.name}: {seen.status}, {said.choices} is not {known.choices}")
        await line.close()

    async def client(self) -> None:
        """Sends one random request after the other, with a random manner each, until the run ends."""
        line = Connection(self.server.port)
        while time.monotonic() < self.end:
            await self.ask(line, self.random.choice(CASES), self._manner())
            if self.random.random() < 0.3:
                await asyncio.sleep(self.random.expovariate(2))
        await line.close()

    def _manner(self) -> Manner:
        draw = self.random.random()
        if draw < 0.08:
            return Manner("leaves at once", leaves_after=0)
        if draw < 0.2:
            return Manner("leaves", leaves_after=int(self.random.expovariate(1 / 2000)) + 1)
        if draw < 0.26:
            return Manner("slow", slow=True)
        return Manner("stalls", stalls=True) if draw < 0.29 else Manner()

    async def ask(self, line: Connection, case: Case, manner: Manner) -> None:
        """Sends one request, and enters it and its outcome in the ledger."""
        stream = case.streams and self.random.random() < 0.6
        model = "second" if self.random.random() < 0.1 else "demo"
        entry = self.ledger.begin(case, stream, model, manner)
        body = _body(case, model, stream)
        seen = await line.ask("POST", case.path, body, entry.request_id, manner, PATIENCE_S)
        if entry.stream and seen.status == 200 and seen.first_s is not None and not manner.slow:
            self.firsts.append(seen.first_s)
        self.ledger.close(entry, seen)

    async def bursts(self) -> None:
        """Sends more requests at once than the queue takes, now and then."""
        short = [case for case in CASES if case.name in ("hello", "text", "response", "tokenize")]
        while time.monotonic() < self.end:
            await asyncio.sleep(self.random.uniform(0.5, 1.5) * self.options.burst_every_s)
            lines = [Connection(self.server.port) for _ in range(60)]
            await asyncio.gather(*(self.ask(line, self.random.choice(short), Manner("burst")) for line in lines))
            await asyncio.gather(*(line.close() for line in lines))

    async def polite_client(self) -> None:
        """Sends one small request after the other from another address, and measures the time to the first byte."""
        line, case = Connection(self.server.port, POLITE), next(case for case in CASES if case.name == "hello")
        while time.monotonic() < self.end:
            seen = await line.ask("POST", case.path, _body(case, "demo", True), "polite", Manner(), PATIENCE_S)
            if seen.status == 200 and seen.first_s is not None:
                self.polite.append(seen.first_s)
            await asyncio.sleep(0.2)
        await line.close()

    async def kills(self) -> None:
        """Kills an engine process now and then. The server must restart it by itself."""
        while time.monotonic() < self.end:
            await asyncio.sleep(self.random.uniform(0.7, 1.3) * self.options.kill_every_s)
            if not (running := engines(self.server.process.pid)) or time.monotonic() > self.end:
                continue
            self.ledger.disturbed("kill")
            began = time.monotonic()
            os.kill(self.random.choice(running), signal.SIGKILL)
            await asyncio.sleep(0.5)
            await self._ready_again(began)

    async def _ready_again(self, began: float) -> None:
        line = Connection(self.server.port)
        while time.monotonic() - began < READY_S:
            seen = await line.ask("GET", "/health", None, "health", Manner(), 30)
            if seen.status == 200:
                self.recoveries.append(time.monotonic() - began)
                break
            if not self.ledger.recent(time.monotonic(), AFTERMATH_S / 2):
                self.ledger.disturbed("still restarting")
            await asyncio.sleep(0.25)
        else:
            self.ledger.violate(f"not ready {READY_S:g} s after a kill")
        await line.close()

    async def reloads(self) -> None:
        """Adds and removes a second model now and then, and sometimes replaces the first one under load."""
        line, count = Connection(self.server.port), 0
        while time.monotonic() < self.end:
            await asyncio.sleep(self.random.uniform(0.7, 1.3) * self.options.reload_every_s)
            count += 1
            self.server.configure(second=count % 2 == 1, sequences=16 - count // 3 % 2)
            self.ledger.disturbed("reload")
            seen = await line.ask("POST", "/v1/config/reload", {}, "reload", Manner(), READY_S)
            killed = any(
                seen.began - 1 < when < seen.ended for when, what in self.ledger.disturbances if what == "kill"
            )
            if seen.status != 200 and not killed:
                self.ledger.violate(f"reload: {seen.status} {seen.trouble} {seen.body!r}")
        await line.close()

    async def run(self, watch: Watch) -> None:
        """Runs all clients and disturbances for the configured time."""
        self.end = time.monotonic() + self.options.minutes * 60
        chaos = [asyncio.create_task(work) for work in (self.kills(), self.reloads(), self.bursts())]
        looking = asyncio.create_task(watch.run(self.options.sample_s))
        chaos += [asyncio.create_task(hostile.run()) for hostile in self.hostile]
        await asyncio.gather(*(self.client() for _ in range(self.options.clients)), self.polite_client())
        for task in chaos:
            task.cancel()
        await asyncio.gather(*chaos, return_exceptions=True)
        watch.over = True
        await looking

    async def calm(self, watch: Watch, before: Sample) -> Sample:
        """Waits after the load until nothing runs, waits or is held, and adds a violation if that does not happen."""
        self.server.configure(second=False, sequences=16)
        self.ledger.disturbed("reload")
        await watch.post("/v1/config/reload")
        deadline = time.monotonic() + CALM_S
        while True:
            now = await watch.look()
            watch.samples.append(now)
            idle = not (now.running or now.waiting or now.in_flight or now.kv)
            if idle and now.descriptors <= before.descriptors + 2:
                return now
            if time.monotonic() > deadline:
                self.ledger.violate(f"not idle {CALM_S:g} s after the load: {now}, before it: {before}")
                return now
            await asyncio.sleep(0.5)


def _body(case: Case, model: str, stream: bool) -> dict[str, object]:
    return {"model": model, **case.body, **({"stream": True} if stream else {})}


async def main(options: argparse.Namespace) -> int:
    """Runs the test and returns the exit status."""
    ledger = Ledger()
    with tempfile.TemporaryDirectory() as directory:
        server = Server(ledger, Path(directory), options.replicas)
        await server.start()
        soak = Soak(options, server, ledger)
        await soak.quiet_run()
        watch = Watch(server.port, server.process, server.control)
        before = await watch.look()
        try:
            await soak.run(watch)
            after = await soak.calm(watch, before)
        finally:
            await watch.close()
            await server.stop()
    ledger.finish()
    early = [s.front_mb for s in watch.samples if s.t < options.minutes * 20]
    if early and after.front_mb > max(early) + GROWTH_MB:
        ledger.violate(f"the front end grew from {max(early):.0f} to {after.front_mb:.0f} MB")
    write(options, summary(options, soak, watch, before, after), watch, ledger)
    return 1 if ledger.violations else 0


def write(options: argparse.Namespace, report: dict[str, object], watch: Watch, ledger: Ledger) -> None:
    """Prints the summary, and writes it with all samples to a file."""
    print(json.dumps(report, indent=1))
    samples = [asdict(sample) for sample in watch.samples]
    times = [(when - watch.began, what) for when, what in ledger.disturbances]
    Path(f"{options.out}.json").write_text(json.dumps({**report, "samples": samples, "disturbances": times}))


def summary(options: argparse.Namespace, soak: Soak, watch: Watch, before: Sample, after: Sample) -> dict[str, object]:
    """Returns the results of a run."""
    ledger, samples = soak.ledger, watch.samples

    def over_time(name: str) -> dict[str, float]:
        seen = [getattr(sample, name) for sample in (before, after, *samples)]
        return {"before": seen[0], "most": max(seen), "after": seen[1]}

    return {
        **{name: getattr(options, name) for name in ("minutes", "clients", "replicas")},
        "requests": ledger.total,
        "outcomes": nested(ledger.outcomes),
        "kills": sum(what == "kill" for _, what in ledger.disturbances),
        "reloads": sum(what == "reload" for _, what in ledger.disturbances),
        "ready_again_s": quantiles(soak.recoveries, 1),
        "first_byte_s": quantiles(soak.firsts, 1),
        "polite_first_byte_s": quantiles(soak.polite, 1),
        "liveness_ms": quantiles([sample.live_ms for sample in samples], 1),
        **{name: over_time(name) for name in ("front_mb", "engine_mb", "descriptors")},
        "loop_pause_ms": quantiles([sample.loop_ms for sample in samples], 1),
        "empty_loop_pause_ms": quantiles([sample.empty_loop_ms for sample in samples], 1),
        "pauses_beyond_50_ms": {"loop": after.long_pauses, "empty_loop": after.empty_long_pauses},
        "hostile": nested(sum((client.answers for client in soak.hostile), Counter[tuple[str, int]]())),
        "kv_most": max(s.kv for s in samples),
        "waiting_most": max(s.waiting for s in samples),
        "violations": len(ledger.violations),
        "first_violations": ledger.violations[:50],
    }


def nested(counts: Mapping[tuple[str, Any], int]) -> dict[str, dict[Any, int]]:
    """Returns the counts of pairs by their first members, and then by their second ones."""
    found: dict[str, dict[Any, int]] = {}
    for (first, second), count in sorted(counts.items()):
        found.setdefault(first, {})[second] = count
    return found


def parsed(argv: list[str] | None = None) -> argparse.Namespace:
    """Returns the arguments of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=3.0)
    parser.add_argument("--clients", type=int, default=10)
    parser.add_argument("--hostile", type=int, default=0, help="connections of a client at full blast")
    parser.add_argument("--replicas", type=int, default=1, help="engine processes of each model")
    parser.add_argument("--kill_every_s", type=float, default=75.0)
    parser.add_argument("--reload_every_s", type=float, default=50.0)
    parser.add_argument("--burst_every_s", type=float, default=40.0)
    parser.add_argument("--sample_s", type=float, default=2.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", default="soak", help="where the summary and all samples go, without .json")
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(asyncio.run(main(parsed())))
