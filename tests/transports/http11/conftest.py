"""Event loops of these tests: real ones for servers with sockets, virtual time for all else."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

import pytest
import uvloop

from tests.transports.http11.fakes import JumpLoop, jump_loop


def pytest_asyncio_loop_factories(item: pytest.Function) -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Servers with real sockets are tested on either kind of loop."""
    loops: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {"asyncio": asyncio.new_event_loop}
    return loops | ({"uvloop": uvloop.new_event_loop} if item.path.name == "test_server.py" else {})


@pytest.fixture
def loop() -> Iterator[JumpLoop]:
    with jump_loop() as loop:
        yield loop
