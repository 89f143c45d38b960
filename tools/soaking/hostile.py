"""A hostile client, which sends one random body of BODIES after the other. Its answers are counted, but not in the
ledger.

An answer with a status that is not in ALLOWED, or no answer, is a violation. tests/threats has more kinds of attacks.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable
from typing import Any

from tools.soaking.client import Connection, Manner
from tools.soaking.ledger import Ledger

ALLOWED = frozenset({200, 400, 404, 408, 413, 429, 431, 503})
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"


class Hostile:
    """One client that sends without a pause from an address of its own. `answers` counts (body, status)."""

    def __init__(self, port: int, address: str, ledger: Ledger, rng: random.Random, patience_s: float) -> None:
        self.answers: Counter[tuple[str, int]] = Counter()
        self._line = Connection(port, address)
        self._ledger = ledger
        self._random = rng
        self._patience_s = patience_s

    async def run(self) -> None:
        """Sends random bodies until it is cancelled."""
        try:
            while True:
                name = self._random.choice(list(BODIES))
                path, make = BODIES[name]
                status = await self._post(path, {"model": "demo", **make(self._random)})
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
