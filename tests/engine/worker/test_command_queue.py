"""Commands of one client do not delay those of another, and each client's commands stay in order."""

from lean_ovms.engine.protocol import Cancel, Decode, Encode, Ping, Submit
from lean_ovms.engine.worker.loop import CommandQueue


def submit(number, client=""):
    return Submit(number, "x", False, None, False, {}, client=client)


def drained(queue):
    return list(iter(queue.next, None))


def test_one_client_is_served_in_its_order():
    queue, commands = CommandQueue(), [submit(1, "a"), Encode(2, ["x"], False, "a"), submit(3, "a")]
    queue.extend(commands)
    assert drained(queue) == commands
    assert not queue


def test_clients_take_turns():
    queue = CommandQueue()
    queue.extend([submit(i, "a") for i in range(5)])
    queue.extend([submit(10, "b")])
    assert [command.id for command in drained(queue)] == [0, 10, 1, 2, 3, 4]


def test_commands_without_a_client_are_not_behind_those_of_one():
    queue = CommandQueue()
    queue.extend([submit(i, "a") for i in range(1, 4)])
    queue.extend([Ping(7), Decode(8, [1], True)])
    assert [command.id for command in drained(queue)] == [1, 7, 2, 8, 3]


def test_a_cancellation_stays_behind_its_request():
    queue = CommandQueue()
    queue.extend([submit(1, "a"), submit(2, "a"), Cancel(2), submit(3, "b"), Cancel(9)])
    order = [(command.kind, command.id) for command in drained(queue)]
    assert order.index(("submit", 2)) < order.index(("cancel", 2))
    assert ("cancel", 9) in order
