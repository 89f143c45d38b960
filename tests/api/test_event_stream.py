"""The bytes of an event stream: large events take turns with other streams, in order, however the client reads."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import pytest

from lean_ovms.api.sse import DONE, PING, EventStream, Rendered, Renderer
from lean_ovms.errors import EngineFailure, RequestError
from lean_ovms.types import Usage
from lean_ovms.types.push import Sink

LARGE = [b"large %d," % n for n in range(50)]


class Texts:
    """A stream of texts. "!" makes it fail."""

    usage = Usage()

    def __init__(self, *texts: str, heedless: bool = False) -> None:
        self._texts, self._heedless = texts, heedless
        self.closed = False
        self.pushed = 0

    async def push_to(self, sink: Sink[list[str]]) -> None:
        for text in self._texts:
            if text == "!":
                raise EngineFailure("it failed")
            self.pushed += 1
            if self._heedless:  # like tool calls that end at the same time
                sink.push([text])
            else:
                await sink.send([text])

    async def aclose(self) -> None:
        self.closed = True


class Rendering(Renderer[str]):
    """Renders "large" as a large event, and other texts as themselves."""

    def deltas(self, deltas: list[str]) -> Rendered:
        [text] = deltas
        return list(LARGE) if text == "large" else text.encode()

    def end(self, usage: Usage) -> Rendered:
        return list(LARGE)

    def failed(self, error: RequestError) -> Rendered:
        return b"failed"


@pytest.mark.parametrize("heedless", [False, True])
@pytest.mark.parametrize("reads_slowly", [False, True])
@pytest.mark.parametrize("texts", [("a", "large", "b", "large", "c"), ("large",), ("a",), ("a", "large", "!"), ()])
async def test_pieces_are_in_order_and_others_have_their_turns(
    texts: tuple[str, ...], reads_slowly: bool, heedless: bool
) -> None:
    got: list[bytes] = []
    turns, most = 0, 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    def paused() -> asyncio.Future[None] | None:
        if not reads_slowly or len(got) % 7:
            return None
        waiter = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_soon(waiter.set_result, None)
        got.append(b"")
        return waiter

    def push(data: bytes) -> None:
        nonlocal most
        most = max(most, len(data))
        got.append(data)

    other = asyncio.ensure_future(count())
    await EventStream(Texts(*texts, heedless=heedless), Rendering(), 0).push_to(Sink(push, paused))
    other.cancel()
    large = b"".join(LARGE)
    ending = b"failed" if "!" in texts else large
    wanted = b"".join(large if text == "large" else text.encode() for text in texts if text != "!")
    assert b"".join(got) == wanted + ending + DONE
    assert most <= 20
    assert turns >= 50 * (texts.count("large") + ("!" not in texts))


async def test_a_source_is_paused_while_a_large_event_is_sent() -> None:
    source, got = Texts("large", "b"), list[bytes]()
    stream = EventStream(source, Rendering(), 0)
    task = asyncio.ensure_future(stream.push_to(Sink(got.append)))
    while len(got) < 10:
        await asyncio.sleep(0)
    assert source.pushed == 1
    await task
    assert source.pushed == 2


async def test_a_stream_that_is_left_in_a_large_event_sends_no_more() -> None:
    source, got = Texts("large", "b"), list[bytes]()
    never: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    stream = EventStream(source, Rendering(), 0.001)
    push: Any = got.append
    task = asyncio.ensure_future(stream.push_to(Sink(push, lambda: never if len(got) > 3 else None)))
    while len(got) < 4:
        await asyncio.sleep(0)
    stream._sent_at = 0.0
    stream._check_silence()  # a client that does not read gets no ping
    await stream.aclose()
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    assert source.closed
    assert len(got) == 4
    assert PING not in got
