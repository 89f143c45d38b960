"""A hostile client, which picks what it sends at random from ACTS. Its answers are counted, but not in the ledger.

An answer with a status that is not in ALLOWED, or no answer, is a violation.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

from tools.soaking.client import Connection, Manner
from tools.soaking.ledger import Ledger

ALLOWED = frozenset({200, 400, 404, 408, 413, 429, 431, 503})
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"


class Hostile:
    """One client that sends without a pause from an address of its own. `answers` counts (act, status)."""

    def __init__(self, port: int, address: str, ledger: Ledger, rng: random.Random, patience_s: float) -> None:
        self.answers: Counter[tuple[str, int]] = Counter()
        self._port = port
        self._line = Connection(port, address)
        self._ledger = ledger
        self._random = rng
        self._patience_s = patience_s

    async def run(self) -> None:
        """Performs random acts until it is cancelled."""
        try:
            while True:
                name, act = self._random.choice(ACTS)
                status = await act(self)
                self.answers[name, status] += 1
                await asyncio.sleep(0.02 if status == 200 else 0.2)
        finally:
            await self._line.close()

    async def _post(self, path: str, body: dict[str, Any]) -> int:
        seen = await self._line.ask("POST", path, body, "hostile", Manner(), self._patience_s)
        # The server does not read the rest of a body that it has refused.
        refused = "Reset" in seen.trouble or "BrokenPipe" in seen.trouble
        if seen.status not in ALLOWED and not refused:
            self._ledger.violate(f"hostile {path}: {seen.status} {seen.trouble} {seen.body[:300]!r}")
        return seen.status

    async def body(self, path: str, make: Callable[[random.Random], dict[str, Any]]) -> int:
        """Sends one of BODIES."""
        return await self._post(path, {"model": "demo", **make(self._random)})

    async def stored_items(self) -> int:
        """Stores a conversation of large items, and lists them."""
        item = {"type": "message", "role": "user", "content": "x" * 100_000}
        seen = await self._line.ask(
            "POST", "/v1/conversations", {"items": [item] * 20}, "hostile", Manner(), self._patience_s
        )
        if seen.status != 200:
            return seen.status
        path = f"/v1/conversations/{json.loads(seen.body)['id']}"
        listed = await self._line.ask("GET", f"{path}/items?limit=100", None, "hostile", Manner(), self._patience_s)
        await self._line.ask("DELETE", path, None, "hostile", Manner(), self._patience_s)
        return listed.status

    async def idle_connections(self) -> int:
        """Opens fifty connections that send nothing."""
        opened = await asyncio.gather(*(asyncio.open_connection("127.0.0.1", self._port) for _ in range(50)))
        await asyncio.sleep(2)
        for _, writer in opened:
            writer.close()
        return 0

    async def raw(self, data: bytes, wait_s: float, trickle: bytes = b"") -> int:
        """Sends one of BYTES, waits, and disconnects without reading.

        Args:
            data: The bytes to send at once.
            wait_s: Seconds to wait before disconnecting.
            trickle: Bytes to send afterwards, one every 0.1 seconds.

        Returns:
            0, the status for an act without an answer.
        """
        with contextlib.suppress(OSError, asyncio.TimeoutError):
            _, writer = await asyncio.open_connection("127.0.0.1", self._port)
            try:
                writer.write(data)
                for byte in trickle:
                    writer.write(bytes([byte]))
                    await asyncio.sleep(0.1)
                await asyncio.sleep(wait_s)
            finally:
                writer.transport.abort()
        return 0


def _talk(text: str, **more: Any) -> dict[str, Any]:
    """Returns the body of a chat."""
    return {"messages": [{"role": "user", "content": text}], **more}


GO_ON = {"prompt": ["go on"] * 16, "n": 8, "max_tokens": 400, "ignore_eos": True}
VALUES: tuple[Any, ...] = ({}, [], 7, "x" * 100)
SLOW = ("((.?){50}){50}", "(.?.?.?){300}", "(((.?){12}){12}){12}", "(a+)+" * 40)
"""Regular expressions that compile fast but are slow at each token."""
BODIES: dict[str, tuple[str, Callable[[random.Random], dict[str, Any]]]] = {
    "many sequences": (COMPLETIONS, lambda r: GO_ON),
    "long text": (CHAT, lambda r: _talk("all work and no play " * r.randrange(200_000, 1_200_000))),  # 4 to 24 MB
    # may be more values than a body is allowed to have
    "many values": (COMPLETIONS, lambda r: {"prompt": [r.choice(VALUES)] * r.randrange(300_000)}),
    "slow grammar": (CHAT, lambda r: _talk("x", guided_regex=r.choice(SLOW), n=8, max_tokens=40)),
}
BYTES: dict[str, tuple[Any, ...]] = {
    "pipelined": (b"GET /health HTTP/1.1\r\nHost: soak\r\n\r\n" * 4000, 0.5),
    "half a request": (b"POST /v1/completions HTTP/1.1\r\nHost: soak\r\nContent-Length: 30000000\r\n\r\n{", 2.0),
    "slow head": (b"GET /v1/models HTTP/1.1\r\nX-Slow: ", 0.0, b"a" * 20),
    "rubbish": (random.Random(1).randbytes(20_000), 0.2),
}
ACTS: list[tuple[str, Callable[[Hostile], Awaitable[int]]]] = [
    *((name, lambda one, row=row: one.body(*row)) for name, row in BODIES.items()),
    *((name, lambda one, row=row: one.raw(*row)) for name, row in BYTES.items()),
    ("stored items", Hostile.stored_items),
    ("idle connections", Hostile.idle_connections),
]
