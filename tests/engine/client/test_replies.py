"""Mailboxes and calls: merging, cancelling, and exactly one end; no process."""

import asyncio

import pytest

from lean_ovms.engine import protocol
from lean_ovms.engine.client.replies import ReplyRouter
from lean_ovms.engine.protocol import Tokens
from lean_ovms.errors import BadRequest, EngineFailure, RequestTimeout, Unavailable
from lean_ovms.push_types import Sink


class Room(ReplyRouter):
    """A mailroom that remembers what it sent."""

    def __init__(self):
        self.sent = []
        super().__init__(self.sent.append)

    def accepted(self, sequences=1):
        reply = self.open(sequences)
        self.deliver([protocol.Accepted(reply.id, 3)])
        return reply


async def reading(reply):
    """A task that already waits in next()."""
    task = asyncio.create_task(reply.next())
    await asyncio.sleep(0)
    return task


async def test_nothing_new_is_none_and_the_end_is_empty():
    room = Room()
    reply = room.accepted()
    assert reply.poll() is None
    assert not reply.finished
    room.deliver([Tokens(reply.id, 0, [1], None, "stop")])
    assert reply.finished
    assert reply.poll() == [Tokens(1, 0, [1], None, "stop")]
    assert reply.poll() == []
    assert await reply.next() == []
    assert not room.busy


async def test_what_comes_between_two_looks_is_merged_per_sequence():
    room = Room()
    reply = room.accepted(2)
    room.deliver([Tokens(reply.id, 0, [1], [-1.0], None), Tokens(reply.id, 1, [5], [-5.0], None)])
    room.deliver([Tokens(reply.id, 0, [2, 3], [-2.0, -3.0], "length")])
    assert await reply.next() == [
        Tokens(reply.id, 0, [1, 2, 3], [-1.0, -2.0, -3.0], "length"),
        Tokens(reply.id, 1, [5], [-5.0], None),
    ]
    assert reply.poll() is None


async def test_an_empty_final_keeps_the_logprobs_that_came_before():
    room = Room()
    reply = room.accepted()
    room.deliver([Tokens(reply.id, 0, [1], [-1.0], None), Tokens(reply.id, 0, [], None, "stop")])
    assert reply.poll() == [Tokens(reply.id, 0, [1], [-1.0], "stop")]


async def test_a_sequence_that_does_not_come_ends_unseen():
    room = Room()
    reply = room.accepted(3)
    waiting = await reading(reply)
    room.deliver([Tokens(reply.id, 0, [1], None, "stop"), *[Tokens(reply.id, i, [], None, "absent") for i in (1, 2)]])
    assert await waiting == [Tokens(reply.id, 0, [1], None, "stop")]
    assert (reply.poll(), reply.absent, room.busy) == ([], 2, False)


async def test_a_frame_wakes_only_the_readers_it_is_for():
    room = Room()
    mine, other = room.accepted(), room.accepted()
    first, second = await reading(mine), await reading(other)
    room.deliver([Tokens(mine.id, 0, [1], None, None), Tokens(mine.id, 0, [2], None, None)])
    assert [t.tokens for t in await first] == [[1, 2]]
    assert not second.done()
    second.cancel()


async def test_a_reader_that_was_cancelled_loses_nothing():
    room = Room()
    reply = room.accepted()
    task = await reading(reply)
    task.cancel()
    room.deliver([Tokens(reply.id, 0, [1], None, None)])
    with pytest.raises(asyncio.CancelledError):
        await task
    assert [t.tokens for t in await reply.next()] == [[1]]


async def test_an_error_comes_after_what_came_before_it():
    room = Room()
    reply = room.accepted()
    room.deliver([Tokens(reply.id, 0, [1], None, None)])
    room.deliver([protocol.Failed(reply.id, EngineFailure("out of memory").to_wire())])
    assert [t.tokens for t in await reply.next()] == [[1]]
    for _ in range(2):
        with pytest.raises(EngineFailure, match="out of memory"):
            await reply.next()
    assert reply.finished
    assert not room.busy


async def test_a_failure_wakes_the_reader():
    room = Room()
    reply = room.accepted()
    task = await reading(reply)
    room.deliver([protocol.Failed(reply.id, ["NoSuchClass", None, None, None])])
    with pytest.raises(EngineFailure, match="unknown error"):
        await task


async def test_a_cancelled_sequence_is_never_seen_again_and_the_others_go_on():
    room = Room()
    reply = room.accepted(2)
    room.deliver([Tokens(reply.id, 0, [1], None, None), Tokens(reply.id, 1, [2], None, None)])
    reply.cancel(0)
    reply.cancel(0)
    room.deliver([Tokens(reply.id, 0, [3], None, "stop"), Tokens(reply.id, 1, [4], None, "stop")])
    assert room.sent == [protocol.Cancel(reply.id, 0)]
    assert reply.poll() == [Tokens(reply.id, 1, [2, 4], None, "stop")]
    assert reply.poll() == []


async def test_cancelling_every_sequence_ends_the_reply_and_its_reader():
    room = Room()
    reply = room.accepted(2)
    task = await reading(reply)
    reply.cancel(1)
    assert not reply.finished
    reply.cancel(0)
    assert reply.finished
    assert await task == []
    assert not room.busy


@pytest.mark.parametrize("index", [5, -1])
async def test_cancelling_a_sequence_that_is_not_there_does_nothing(index):
    room = Room()
    reply = room.accepted(2)
    reply.cancel(index)
    assert room.sent == []
    assert not reply.finished


async def test_close_cancels_once_and_empties_the_mailbox():
    room = Room()
    reply = room.accepted()
    room.deliver([Tokens(reply.id, 0, [1], None, None)])
    reply.close()
    reply.close()
    assert room.sent == [protocol.Cancel(reply.id)]
    assert reply.poll() == []


async def test_close_after_the_last_final_sends_nothing():
    room = Room()
    reply = room.accepted()
    room.deliver([Tokens(reply.id, 0, [1], None, "stop")])
    reply.close()
    assert room.sent == []
    assert reply.poll() == []


async def test_abort_cancels_in_the_engine_and_gives_its_error_to_the_reader():
    room = Room()
    reply = room.accepted(2)
    task = await reading(reply)
    reply.abort(RequestTimeout("too long"))
    assert room.sent == [protocol.Cancel(reply.id)]
    with pytest.raises(RequestTimeout):
        await task
    reply.abort(RequestTimeout("again"))
    reply.close()
    assert len(room.sent) == 1


async def test_abort_after_the_end_changes_nothing():
    room = Room()
    reply = room.accepted()
    room.deliver([Tokens(reply.id, 0, [1], None, "stop")])
    reply.abort(RequestTimeout("too late"))
    assert [t.reason for t in await reply.next()] == ["stop"]
    assert await reply.next() == []


@pytest.mark.parametrize("index", [-1, 1, 99])
async def test_a_sequence_that_nobody_asked_for_is_dropped(index):
    room = Room()
    reply = room.accepted()
    room.deliver([Tokens(reply.id, index, [1], None, "stop")])
    assert reply.poll() is None


async def test_a_second_final_of_a_sequence_is_dropped():
    room = Room()
    reply = room.accepted(2)
    room.deliver([Tokens(reply.id, 0, [1], None, "stop"), Tokens(reply.id, 0, [2], None, "length")])
    assert reply.poll() == [Tokens(reply.id, 0, [1], None, "stop")]


async def test_records_for_unknown_ids_are_dropped():
    room = Room()
    room.deliver(
        [
            protocol.Accepted(9, 1),
            protocol.Refused(9, BadRequest("no").to_wire()),
            Tokens(9, 0, [1], None, None),
            protocol.PromptLogprobs(9, [None]),
            protocol.Failed(9, EngineFailure("no").to_wire()),
            protocol.Encoded(9, [[1]]),
            protocol.Decoded(9, "x"),
            protocol.Pong(9, {}),
        ]
    )
    assert not room.busy
    assert room.sent == []


async def test_a_record_of_the_other_direction_is_a_broken_engine():
    with pytest.raises(protocol.FrameError, match="cancel"):
        Room().deliver([protocol.Cancel(1)])


async def test_prompt_logprobs_are_known_with_the_first_tokens():
    room = Room()
    reply = room.accepted()
    task = await reading(reply)
    room.deliver([protocol.PromptLogprobs(reply.id, [None, -0.5])])
    await asyncio.sleep(0)
    assert not task.done()
    room.deliver([Tokens(reply.id, 0, [1], None, None)])
    await task
    assert reply.prompt_logprobs is not None
    assert reply.prompt_logprobs.logprobs == [None, -0.5]


async def test_tokens_in_the_frame_of_the_acceptance_are_there_at_once():
    room = Room()
    reply = room.open(1)
    task = asyncio.create_task(reply.wait_accepted())
    await asyncio.sleep(0)
    room.deliver([protocol.Accepted(reply.id, 3, [7, 8, 9]), Tokens(reply.id, 0, [1], None, "stop")])
    await task
    assert (reply.prompt_tokens, reply.tokens) == (3, [7, 8, 9])
    assert [t.tokens for t in reply.poll()] == [[1]]


async def test_fail_all_gives_everybody_an_error_of_his_own():
    room = Room()
    replies = [await reading(room.accepted()) for _ in range(2)]
    call = asyncio.create_task(room.call(protocol.Ping))
    waiting = asyncio.create_task(room.open(1).wait_accepted())
    await asyncio.sleep(0)
    room.fail_all(lambda: Unavailable("gone"))
    errors = await asyncio.gather(*replies, call, waiting, return_exceptions=True)
    assert [str(error) for error in errors] == ["gone"] * 4
    assert len({id(error) for error in errors}) == 4
    assert not room.busy


async def test_a_call_that_was_given_up_leaves_nothing_behind():
    room = Room()
    call = asyncio.create_task(room.call(protocol.Ping))
    await asyncio.sleep(0)
    assert room.busy
    call.cancel()
    room.deliver([protocol.Pong(1, {})])
    with pytest.raises(asyncio.CancelledError):
        await call
    assert not room.busy


async def test_an_answer_is_given_once():
    room = Room()
    call = asyncio.create_task(room.call(lambda n: protocol.Encode(n, ["a"], True)))
    await asyncio.sleep(0)
    room.deliver([protocol.Encoded(1, [[4]]), protocol.Encoded(1, [[5]]), protocol.Refused(1, ["BadRequest"] * 4)])
    assert (await call).tokens == [[4]]


async def test_ids_are_never_given_twice():
    room = Room()
    replies = [room.open(1) for _ in range(3)]
    room.fail_all(lambda: Unavailable("gone"))
    assert [*[r.id for r in replies], room.open(1).id] == [1, 2, 3, 4]


async def test_steps_that_come_at_once_are_pushed_once_for_each_reader_that_waits():
    room = Room()
    replies = [room.accepted() for _ in range(3)]
    pushed = []
    for reply in replies:
        reply.push_to(Sink(lambda: True, pushed.append))
    tasks = [await reading(reply) for reply in replies[:2]]

    room.deliver([Tokens(reply.id, 0, [step], None, None) for step in (1, 2) for reply in replies])
    await asyncio.sleep(0)

    assert [[t.tokens for t in found] for found in pushed] == [[[1, 2]], [[1, 2]]]
    assert not any(task.done() for task in tasks)
    [unread] = replies[2].poll()  # nobody waited for it
    assert unread.tokens == [1, 2]
    for task in tasks:
        task.cancel()


async def test_a_push_that_is_refused_wakes_the_reader_and_an_end_is_always_read():
    room = Room()
    refusing, ending = room.accepted(), room.accepted()
    pushed = []
    refusing.push_to(Sink(lambda: False, pushed.append))
    ending.push_to(Sink(lambda: True, pushed.append))
    tasks = [await reading(refusing), await reading(ending)]

    room.deliver([Tokens(refusing.id, 0, [1], None, None), Tokens(ending.id, 0, [2], None, "stop")])

    assert [[t.tokens for t in await task] for task in tasks] == [[[1]], [[2]]]
    assert pushed == []
