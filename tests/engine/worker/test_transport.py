"""The child's end of the pipe on a real socket pair."""

import socket

import pytest

from lean_ovms.engine.protocol import Ping, Pong, encode
from lean_ovms.engine.worker.loop import Transport


@pytest.fixture
def pair():
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, Transport(theirs)


def test_everything_that_is_there_comes_at_once(pair):
    ours, transport = pair
    for number in range(5):
        ours.sendall(encode([Ping(number), Ping(number)]))
    assert [r.id for r in transport.receive(wait=False)] == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]
    assert transport.receive(wait=False) == []


def test_half_a_frame_is_kept_for_later(pair):
    ours, transport = pair
    frame = encode([Ping(7)])
    ours.sendall(frame[:5])
    assert transport.receive(wait=False) == []
    ours.sendall(frame[5:])
    assert transport.receive(wait=True) == [Ping(7)]


def test_the_end_is_found_by_waiting_and_by_looking(pair):
    ours, transport = pair
    ours.close()
    assert transport.receive(wait=False) is None
    assert transport.receive(wait=True) is None


def test_sending_to_nobody_raises(pair):
    ours, transport = pair
    ours.close()
    with pytest.raises(BrokenPipeError):
        transport.send([Pong(1, {})])
