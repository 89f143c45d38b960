"""The child's loop with a task that generates no text, its pipe, and the order of commands between clients."""

import socket
import threading

import pytest

from lean_ovms.engine import task as engine_task
from lean_ovms.engine.protocol import Cancel, Decode, Decoded, Encode, Encoded, Ping, Pong, Ready, Submit, encode
from lean_ovms.engine.task import CommandQueue, Transport, Worker
from lean_ovms.engine.worker import __main__ as worker_main
from lean_ovms.errors import EngineLost
from tests.engine.rig import MemoryTransport


class Counting:
    """Each step answers one Encode with its id. An Encode of two texts takes two turns, and a Decode a whole turn."""

    def __init__(self):
        self.out = []
        self.work = []
        self.calls = []
        self.accepts_commands = True
        self.fails = self.computing = False

    @property
    def idle(self):
        return not self.work

    def ready(self):
        return Ready({}, {})

    def handle(self, command):
        self.calls.append(("handle", command.id))
        if isinstance(command, Decode):
            self.out.append(Decoded(command.id, ""))
            self.accepts_commands = False
        else:
            self.work.append(command.id)

    def admit(self):
        self.calls.append(("admit", 0))
        self.accepts_commands = True

    def step(self):
        if self.fails:
            self.out.append(Encoded(0, []))
            raise EngineLost("broken")
        self.out.append(Encoded(self.work.pop(0), []))

    def stats(self):
        return {"queued": len(self.work)}


@pytest.fixture
def worker():
    return Worker(Counting(), MemoryTransport())


def to_encode(number, *texts):
    return Encode(number, list(texts), False)


def test_replies_to_commands_are_sent_before_the_step_and_its_records_after(worker):
    worker.transport.inbox.append([to_encode(1), Ping(2)])
    assert worker.turn()
    assert worker.transport.frames == [[Pong(2, {"queued": 1})], [Encoded(1, [])]]


def test_an_idle_task_is_not_stepped_and_waits_for_a_command(worker):
    worker.transport.inbox.append([Ping(1)])
    assert worker.turn()
    assert worker.transport.frames == [[Pong(1, {"queued": 0})]]
    with pytest.raises(AssertionError, match="waits"):
        worker.turn()


def test_commands_that_the_task_does_not_accept_wait_for_a_step_and_keep_their_order(worker):
    worker.transport.inbox.append([to_encode(1), Decode(2, [], False), to_encode(3)])
    worker.turn()
    assert worker.task.calls == [("handle", 1), ("handle", 2), ("admit", 0)]
    worker.turn()
    assert worker.task.calls[3:] == [("handle", 3), ("admit", 0)]
    assert worker.transport.frames[-1] == [Encoded(3, [])]


def test_memory_is_trimmed_when_the_last_request_with_images_has_ended(worker, monkeypatch):
    trimmed = threading.Event()
    monkeypatch.setattr(engine_task.resources, "trim", trimmed.set)
    worker.task.handle = lambda command: worker.task.work.extend([command.id] * 2)
    submit = Submit(1, "look", False, None, False, {}, images=[[1, 1]], pixels=[bytes(3)])
    worker.transport.inbox.append([submit])
    worker.turn()
    assert not worker.task.idle
    worker.turn()
    worker.transport.inbox.append([])
    assert not trimmed.is_set()
    worker.turn()
    assert trimmed.wait(300)
    trimmed.clear()
    worker.transport.inbox.append([])
    worker.turn()
    assert not trimmed.is_set()


def test_an_engine_that_is_lost_takes_no_more_commands(monkeypatch):
    changed = iter(("", "/m/openvino_model")).__next__
    monkeypatch.setattr(worker_main.weight_pages, "changed_file", changed)
    worker = Worker(Counting(), MemoryTransport(), worker_main.require_weights)
    worker.transport.inbox.append([to_encode(1)])
    worker.turn()
    worker.transport.inbox.append([Ping(2)])
    with pytest.raises(EngineLost, match="/m/openvino_model was overwritten"):
        worker.turn()
    assert worker.transport.frames == [[Encoded(1, [])]]


def test_the_loop_ends_when_the_pipe_closes(worker):
    worker.transport.inbox.append([to_encode(1)])
    worker.transport.closed = True
    worker.run()
    assert worker.transport.frames == [[Encoded(1, [])]]


def test_what_a_broken_task_has_to_say_is_sent_before_the_process_ends(worker):
    worker.task.fails = True
    worker.transport.inbox.append([to_encode(1)])
    with pytest.raises(EngineLost):
        worker.run()
    assert worker.transport.frames == [[Encoded(0, [])]]


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


def submit(number, client=""):
    return Submit(number, "x", False, None, False, {}, client=client)


def drained(queue):
    return list(iter(queue.next, None))


@pytest.mark.parametrize(
    ("commands", "order"),
    [
        ([submit(1, "a"), Encode(2, ["x"], False, "a"), submit(3, "a")], [1, 2, 3]),
        # Clients take turns.
        ([*(submit(i, "a") for i in range(5)), submit(10, "b")], [0, 10, 1, 2, 3, 4]),
        # Commands without a client are not behind those of one.
        ([submit(1, "a"), submit(2, "a"), submit(3, "a"), Ping(7), Decode(8, [1], True)], [1, 7, 2, 8, 3]),
    ],
)
def test_a_client_is_served_in_its_order_and_all_take_turns(commands, order):
    queue = CommandQueue()
    queue.extend(commands)
    assert [command.id for command in drained(queue)] == order
    assert not queue


def test_a_cancellation_stays_behind_its_request():
    queue = CommandQueue()
    queue.extend([submit(1, "a"), submit(2, "a"), Cancel(2), submit(3, "b"), Cancel(9)])
    order = [(command.kind, command.id) for command in drained(queue)]
    assert order.index(("submit", 2)) < order.index(("cancel", 2))
    assert ("cancel", 9) in order
