"""The load: a minimal raw HTTP/1.1 client, as `python -m bench.client '{"port": 8000, ...}'`; prints JSON.

A process of its own with little to do per chunk, so that what is measured is the server. Closed loop: each connection
sends its next request when the last answer is complete, until the time is over.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import cast

import uvloop


@dataclass
class Spec:
    """What to send. body: of a POST, its messages are filled in; None: GET. seconds: how long requests are begun."""

    port: int
    path: str
    body: dict[str, object] | None
    connections: int
    seconds: float
    seed: int


@dataclass
class Result:
    """Sums, and quantiles in ms. client_cpu_s: near wall_s means that the client was the limit."""

    wall_s: float
    client_cpu_s: float
    requests: int
    failed: int
    events: int
    first_ms: dict[str, float]
    total_ms: dict[str, float]
    gap_ms: dict[str, float]


@dataclass
class Exchange:
    """One answer. Times are seconds from sending the request; gaps: between arrivals of events, the first excluded."""

    status: int = 0
    first_s: float = 0.0
    total_s: float = 0.0
    events: int = 0
    gaps: list[float] = field(default_factory=list)


class Connection(asyncio.Protocol):
    """One keep-alive connection, one exchange at a time."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._done: asyncio.Future[Exchange] | None = None
        self._exchange = Exchange()
        self._began = 0.0
        self._last = 0.0
        self._head = b""
        self._missing = 0  # body bytes still to come, or -1: chunked
        self._tail = b""

    async def request(self, payload: bytes) -> Exchange:
        """Send and wait for the whole answer."""
        assert self._transport is not None
        self._exchange, self._head, self._tail = Exchange(), b"", b""
        self._done = asyncio.get_running_loop().create_future()
        self._began = self._last = time.perf_counter()
        self._transport.write(payload)
        return await self._done

    def close(self) -> None:
        """Hang up."""
        if self._transport is not None:
            self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        now = time.perf_counter()
        if not self._exchange.status:
            self._head += data
            head, found, data = self._head.partition(b"\r\n\r\n")
            if not found:
                return
            self._start(head)
        if self._missing < 0:
            self._chunked(data, now)
        else:
            self._missing -= len(data)
            if self._missing <= 0:
                self._finish(now)

    def _start(self, head: bytes) -> None:
        self._exchange.status = int(head[9:12])
        at = head.lower().find(b"content-length:")
        self._missing = -1 if at < 0 else int(head[at + 15 :].split(b"\r\n", 1)[0])

    def _chunked(self, data: bytes, now: float) -> None:
        """Count events by their blank lines; a chunk's own CR LF keeps them from being counted twice."""
        events = (self._tail[-1:] + data).count(b"\n\n")
        if events:
            if self._exchange.events:
                self._exchange.gaps.append(now - self._last)
            else:
                self._exchange.first_s = now - self._began
            self._last = now
            self._exchange.events += events
        self._tail = (self._tail + data)[-7:]
        if self._tail == b"\r\n0\r\n\r\n":
            self._finish(now)

    def _finish(self, now: float) -> None:
        self._exchange.total_s = now - self._began
        assert self._done is not None
        self._done.set_result(self._exchange)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._done is not None and not self._done.done():
            self._done.set_exception(ConnectionError("the server hung up"))


def payload(path: str, body: dict[str, object] | None) -> bytes:
    """A request as bytes: POST with a JSON body, or GET."""
    if body is None:
        return f"GET {path} HTTP/1.1\r\nHost: bench\r\n\r\n".encode()
    data = json.dumps(body).encode()
    head = (
        f"POST {path} HTTP/1.1\r\nHost: bench\r\nContent-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
    )
    return head.encode() + data


async def connect(port: int) -> Connection:
    """A new connection to the server on this machine."""
    _, connection = await asyncio.get_running_loop().create_connection(Connection, "127.0.0.1", port)
    return connection


def prompts(seed: int, body: dict[str, object] | None) -> list[dict[str, object] | None]:
    """64 bodies like this one with messages of different lengths; the same ones for the same seed."""
    if body is None:
        return [None]
    rng = random.Random(seed)
    words = ["the", "quick", "brown", "fox", "jumps", "over", "a", "lazy", "dog", "and", "thinks", "about", "it"]
    texts = [" ".join(rng.choices(words, k=rng.randint(5, 40))) for _ in range(64)]
    return [{**body, "messages": [{"role": "user", "content": text}]} for text in texts]


async def life(spec: Spec, number: int, payloads: list[bytes]) -> list[Exchange]:
    """What one connection sees."""
    connection = await connect(spec.port)
    end = time.perf_counter() + spec.seconds
    seen = []
    while time.perf_counter() < end:
        seen.append(await connection.request(payloads[(number + len(seen)) % len(payloads)]))
    connection.close()
    return seen


async def work(spec: Spec) -> Result:
    """Send it all."""
    payloads = [payload(spec.path, body) for body in prompts(spec.seed, spec.body)]
    began, cpu = time.perf_counter(), time.process_time()
    lives = await asyncio.gather(*(life(spec, number, payloads) for number in range(spec.connections)))
    wall_s, cpu_s = time.perf_counter() - began, time.process_time() - cpu
    exchanges = [exchange for seen in lives for exchange in seen]
    return Result(
        wall_s=wall_s,
        client_cpu_s=cpu_s,
        requests=len(exchanges),
        failed=sum(e.status != 200 for e in exchanges),
        events=sum(e.events for e in exchanges),
        first_ms=quantiles([e.first_s for e in exchanges]),
        total_ms=quantiles([e.total_s for e in exchanges]),
        gap_ms=quantiles([gap for e in exchanges for gap in e.gaps]),
    )


def quantiles(values: Sequence[float], scale: float = 1e3) -> dict[str, float]:
    """p50, p90, p99 and max by nearest rank; seconds become milliseconds."""
    if not values:
        return {}
    ordered = sorted(values)
    last = len(ordered) - 1
    marks = {"p50": 0.50, "p90": 0.90, "p99": 0.99, "max": 1.0}
    return {name: round(ordered[min(last, int(mark * len(ordered)))] * scale, 3) for name, mark in marks.items()}


if __name__ == "__main__":
    print(json.dumps(asdict(uvloop.run(work(Spec(**json.loads(sys.argv[1])))))))
