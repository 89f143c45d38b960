"""The loop with a task that does not generate text: commands in order, a step per turn, one frame before and after."""

import threading

import pytest

from lean_ovms.engine.errors import EngineLost
from lean_ovms.engine.protocol import Decode, Decoded, Encode, Encoded, Ping, Pong, Ready, Submit
from lean_ovms.engine.worker import __main__ as worker_main
from lean_ovms.engine.worker import loop
from lean_ovms.engine.worker.loop import Worker
from tests.engine.rig import MemoryTransport


class Counting:
    """Each step answers one Encode with its id. An Encode of two texts takes two turns, and a Decode a whole turn."""

    def __init__(self):
        self.out = []
        self.work = []
        self.calls = []
        self.accepts_commands = True
        self.fails = False

    @property
    def idle(self):
        return not self.work

    def ready(self):
        return Ready({}, [], [], False, True)

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


def encode(number, *texts):
    return Encode(number, list(texts), False)


def test_replies_to_commands_are_sent_before_the_step_and_its_records_after(worker):
    worker.transport.inbox.append([encode(1), Ping(2)])
    assert worker.turn()
    assert worker.transport.frames == [[Pong(2, {"queued": 1})], [Encoded(1, [])]]


def test_an_idle_task_is_not_stepped_and_waits_for_a_command(worker):
    worker.transport.inbox.append([Ping(1)])
    assert worker.turn()
    assert worker.transport.frames == [[Pong(1, {"queued": 0})]]
    with pytest.raises(AssertionError, match="waits"):
        worker.turn()


def test_commands_that_the_task_does_not_accept_wait_for_a_step_and_keep_their_order(worker):
    worker.transport.inbox.append([encode(1), Decode(2, [], False), encode(3)])
    worker.turn()
    assert worker.task.calls == [("handle", 1), ("handle", 2), ("admit", 0)]
    worker.turn()
    assert worker.task.calls[3:] == [("handle", 3), ("admit", 0)]
    assert worker.transport.frames[-1] == [Encoded(3, [])]


def test_memory_is_trimmed_when_the_last_request_with_images_has_ended(worker, monkeypatch):
    trimmed = threading.Event()
    monkeypatch.setattr(loop.resources, "trim", trimmed.set)
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
    worker.transport.inbox.append([encode(1)])
    worker.turn()
    worker.transport.inbox.append([Ping(2)])
    with pytest.raises(EngineLost, match="/m/openvino_model was overwritten"):
        worker.turn()
    assert worker.transport.frames == [[Encoded(1, [])]]


def test_the_loop_ends_when_the_pipe_closes(worker):
    worker.transport.inbox.append([encode(1)])
    worker.transport.closed = True
    worker.run()
    assert worker.transport.frames == [[Encoded(1, [])]]


def test_what_a_broken_task_has_to_say_is_sent_before_the_process_ends(worker):
    worker.task.fails = True
    worker.transport.inbox.append([encode(1)])
    with pytest.raises(EngineLost):
        worker.run()
    assert worker.transport.frames == [[Encoded(0, [])]]
