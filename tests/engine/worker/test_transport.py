"""The child's end of the pipe on a real socket pair."""

import socket

import pytest

from lean_ovms.engine.protocol import Decoder, Ping, Pong, encode
from lean_ovms.engine.worker.transport import SocketLink


@pytest.fixture
def pair():
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, SocketLink(theirs)


def test_nothing_there_is_an_empty_answer_at_once(pair):
    _, link = pair
    assert link.take(False) == []


def test_everything_that_is_there_comes_at_once(pair):
    ours, link = pair
    for number in range(5):
        ours.sendall(encode([Ping(number), Ping(number)]))
    assert [r.id for r in link.take(False)] == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]
    assert link.take(False) == []


def test_half_a_frame_is_kept_for_later(pair):
    ours, link = pair
    frame = encode([Ping(7)])
    ours.sendall(frame[:5])
    assert link.take(False) == []
    ours.sendall(frame[5:])
    assert link.take(True) == [Ping(7)]


def test_the_end_is_told_by_waiting_and_by_looking(pair):
    ours, link = pair
    ours.close()
    assert link.take(False) is None
    assert link.take(True) is None


def test_records_before_the_end_are_of_no_use_any_more(pair):
    ours, link = pair
    ours.sendall(encode([Ping(1)]))
    ours.close()
    assert link.take(True) is None


def test_what_is_sent_arrives_as_one_frame(pair):
    ours, link = pair
    link.send([Pong(1, {}), Pong(2, {})])
    assert [r.id for r in Decoder().feed(ours.recv(1 << 16))] == [1, 2]


def test_sending_to_nobody_raises(pair):
    ours, link = pair
    ours.close()
    with pytest.raises(BrokenPipeError):
        link.send([Pong(1, {})])
