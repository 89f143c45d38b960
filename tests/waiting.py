"""Waiting in tests for what happens in another task or thread, without a fixed time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest


async def until(condition: Callable[[], object]) -> None:
    """Returns when the condition holds; the test's own time limit bounds it."""
    while not condition():
        await asyncio.sleep(0.001)


async def cancel(task: asyncio.Future[Any]) -> None:
    """Cancels a task, and returns when that has ended it."""
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
