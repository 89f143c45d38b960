"""Waiting in tests for what happens in another task or thread, without a fixed time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


async def until(condition: Callable[[], object]) -> None:
    """Returns when the condition holds; the test's own time limit bounds it."""
    while not condition():
        await asyncio.sleep(0.001)
