"""Waiting in tests for what happens in another task or thread, without a fixed time."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import Any

import pytest


async def until(condition: Callable[[], object]) -> None:
    """Returns when the condition holds. The test's own timeout limits it."""
    while not condition():
        await asyncio.sleep(0.001)


def is_gone(pid: int) -> bool:
    """Returns whether a process has ended, and its parent has read its status."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


async def cancel(task: asyncio.Future[Any]) -> None:
    """Cancels a task, and returns when it has ended."""
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
