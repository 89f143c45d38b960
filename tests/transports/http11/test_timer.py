"""Deadlines in virtual time."""

from __future__ import annotations

import pytest

from lean_ovms.transports.http11.connection import Deadline
from lean_ovms.types import Response
from tests.transports.http11.fakes import JumpLoop, Wire, answering


def after(loop: JumpLoop, seconds: float) -> None:
    loop.call_later(seconds, loop.stop)
    loop.run_forever()


def test_it_happens_once_at_its_time(loop: JumpLoop) -> None:
    happened: list[float] = []
    deadline = Deadline(loop)
    deadline.set(5, lambda: happened.append(loop.time()))
    after(loop, 20)
    assert happened == [5]


@pytest.mark.parametrize("moved_to", [1.0, 8.0])
def test_it_can_be_moved_both_ways(loop: JumpLoop, moved_to: float) -> None:
    happened: list[tuple[str, float]] = []
    deadline = Deadline(loop)
    deadline.set(5, lambda: happened.append(("first", loop.time())))
    deadline.set(moved_to, lambda: happened.append(("second", loop.time())))
    after(loop, 20)
    assert happened == [("second", moved_to)]


@pytest.mark.parametrize("how", ["clear", "stop"])
def test_it_can_be_called_off_and_set_again(loop: JumpLoop, how: str) -> None:
    happened: list[float] = []
    deadline = Deadline(loop)
    deadline.set(5, lambda: happened.append(loop.time()))
    getattr(deadline, how)()
    after(loop, 20)
    assert happened == []
    deadline.set(1, lambda: happened.append(loop.time()))
    after(loop, 20)
    assert happened == [21]


def test_an_action_can_set_it_again(loop: JumpLoop) -> None:
    happened: list[float] = []
    deadline = Deadline(loop)

    def again() -> None:
        happened.append(loop.time())
        deadline.set(2, again)

    deadline.set(1, again)
    after(loop, 6)
    assert happened == [1, 3, 5]


def test_moving_it_for_every_request_makes_no_timers(loop: JumpLoop) -> None:
    it = Wire(loop, answering(*[_ok()] * 100))
    made = []
    loop.call_at = lambda *args, **kwargs: made.append(args) or JumpLoop.call_at(loop, *args, **kwargs)  # type: ignore[method-assign,func-returns-value]
    for _ in range(100):
        it.send(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
    assert it.received.count(b"200 OK") == 100
    assert made == []


def _ok() -> Response:

    return Response(200, [], b"ok")


def test_a_process_that_stood_still_reads_first_what_came_meanwhile(loop: JumpLoop) -> None:
    happened: list[str] = []
    slow, quick = Deadline(loop), Deadline(loop)
    slow.set(5, lambda: happened.append(f"cut at {loop.time():g}"))
    quick.set(5, lambda: happened.append("cut, too"))
    loop.call_later(1, loop.stand_still, 60)
    loop.call_later(61.05, quick.clear)  # the awaited data was already in the socket
    after(loop, 100)
    assert happened == ["cut at 61.1"]
