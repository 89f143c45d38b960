"""The event loops of these tests: real ones for transports with sockets, virtual time for all others."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest
import pytest_asyncio
import uvloop

from tests.transports.http11.fakes import JumpLoop, jump_loop

Loops = dict[str, Callable[[], asyncio.AbstractEventLoop]]
ASYNCIO: Loops = {"asyncio": asyncio.new_event_loop}
UVLOOP: Loops = {"uvloop": uvloop.new_event_loop}
DIFFERENT = ("tls", "drain", "unix", "finish")
"""Words in the names of tests of what the loops do differently: TLS, Unix sockets, and the end of connections."""


def pytest_asyncio_loop_factories(item: pytest.Function) -> Loops:
    if item.path.name not in ("test_server.py", "test_contract.py"):
        return ASYNCIO
    return UVLOOP | (ASYNCIO if any(word in item.name for word in DIFFERENT) else {})


@pytest.fixture
def problems() -> Iterator[list[dict[str, Any]]]:
    """Fails the test if the loop has reported unhandled exceptions when it is closed."""
    found: list[dict[str, Any]] = []
    yield found
    assert found == []


@pytest_asyncio.fixture
async def real_loop(problems: list[dict[str, Any]], request: pytest.FixtureRequest) -> AsyncIterator[None]:
    """A loop of the server. At the end of a test, no task and no unhandled exception may be left."""
    loop = asyncio.get_running_loop()
    if sys.version_info < (3, 11) and "tls" in request.node.name and not isinstance(loop, uvloop.Loop):
        pytest.skip("asyncio's own TLS of Python 3.10 does not cut connections (lean_ovms/features/embed/README.md)")
    loop.set_exception_handler(lambda _, context: problems.append(context))
    yield
    await asyncio.sleep(0)
    assert asyncio.all_tasks() == {asyncio.current_task()}


@pytest.fixture
def loop() -> Iterator[JumpLoop]:
    with jump_loop() as loop:
        yield loop
