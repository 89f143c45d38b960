"""Replies and calls: merging, pushing, cancelling, and exactly one end. No process."""

import asyncio

import pytest

from lean_ovms.engine import protocol
from lean_ovms.engine.client.replies import ReplyRouter
from lean_ovms.engine.protocol import Tokens
from lean_ovms.errors import BadRequest, EngineFailure, RequestTimeout, Unavailable
from lean_ovms.types.push import Sink
from tests.streams import Gate
from tests.waiting import cancel


class Room(ReplyRouter):
    """A mailroom that remembers what it sent."""

    def __init__(self):
        self.sent = []
        super().__init__(self.sent.append)

    def accepted(self, sequences=1):
        reply = self.open(sequences)
        self.deliver([protocol.Accepted(reply.id, 3)])
        return reply


@pytest.fixture
def room():
    return Room()


async def pushed(reply, is_open=True):
    """Returns a sink to which the reply is already being pushed."""
    gate = Gate(reply, is_open=is_open)
    await asyncio.sleep(0)
    return gate


async def test_what_comes_while_the_sink_is_paused_is_merged_per_sequence(room):
    reply = room.accepted(2)
    gate = await pushed(reply, is_open=False)
    room.deliver([Tokens(reply.id, 0, [1], [-1.0], None), Tokens(reply.id, 1, [5], [-5.0], None)])
    room.deliver([Tokens(reply.id, 0, [2, 3], [-2.0, -3.0], "length")])
    await asyncio.sleep(0)
    assert gate.pieces == []
    gate.open()
    await asyncio.sleep(0)
    assert gate.pieces == [
        [Tokens(reply.id, 0, [1, 2, 3], [-1.0, -2.0, -3.0], "length"), Tokens(reply.id, 1, [5], [-5.0], None)]
    ]
    assert not gate.task.done()


async def test_tokens_of_a_frame_are_pushed_in_the_turn_in_which_it_comes(room):
    gate = await pushed(reply := room.accepted())
    room.deliver([Tokens(reply.id, 0, [1], None, None)])
    assert gate.pieces == [[Tokens(reply.id, 0, [1], None, None)]]
    room.deliver([protocol.DetailedTokens(reply.id, 0, [2], [-1.0], "stop", [[]])])
    assert [[t.tokens for t in found] for found in gate.pieces] == [[[1]], [[2]]]
    await gate.task


async def test_a_sequence_that_does_not_come_ends_unseen(room):
    gate = await pushed(reply := room.accepted(3))
    room.deliver([Tokens(reply.id, 0, [1], None, "stop"), *[Tokens(reply.id, i, [], None, "absent") for i in (1, 2)]])
    await gate.task
    assert gate.pieces == [[Tokens(reply.id, 0, [1], None, "stop")]]
    assert (reply.absent, room.busy) == (2, False)


async def test_after_its_cancellation_nothing_is_pushed(room):
    gate = await pushed(reply := room.accepted())
    await cancel(gate.task)
    room.deliver([Tokens(reply.id, 0, [1], None, None)])
    assert gate.pieces == []


async def test_an_error_of_no_known_class_is_a_failure_of_the_engine(room):
    gate = await pushed(reply := room.accepted())
    room.deliver([protocol.Failed(reply.id, ["NoSuchClass", None, None, None])])
    with pytest.raises(EngineFailure, match="unknown error"):
        await gate.task


@pytest.mark.parametrize("reason", [None, "stop"])
async def test_what_the_sink_raises_ends_the_request_and_no_other(reason, room):
    """The sink may also fail at the last tokens."""
    reply, other = room.accepted(2), room.accepted()
    task = asyncio.ensure_future(reply.push_to(Sink(lambda found: 1 / 0)))
    gate = await pushed(other)
    room.deliver([Tokens(number, index, [1], None, reason) for number, index in ((1, 0), (1, 1), (2, 0))])
    assert len(gate.pieces) == 1
    with pytest.raises(ZeroDivisionError):
        await task
    assert room.sent == ([protocol.Cancel(reply.id)] if reason is None else [])
    assert room.busy == (reason is None)  # with the other request


async def test_a_sequence_that_its_own_tokens_end_is_cancelled_while_they_are_pushed(room):
    reply, seen = room.accepted(), []

    def take(records):
        reply.cancel(0)  # as a stop string does
        seen.append(records)

    task = asyncio.ensure_future(reply.push_to(Sink(take)))
    await asyncio.sleep(0)
    room.deliver([Tokens(reply.id, 0, [1], None, None)])
    room.deliver([Tokens(reply.id, 0, [2], None, None)])
    await task
    assert len(seen) == 1
    assert room.sent == [protocol.Cancel(reply.id, 0)]


async def test_cancel_is_sent_once_and_drops_what_is_not_pushed(room):
    gate = await pushed(reply := room.accepted(), is_open=False)
    room.deliver([Tokens(reply.id, 0, [1], None, None)])
    reply.cancel()
    reply.cancel()
    assert room.sent == [protocol.Cancel(reply.id)]
    gate.open()
    await gate.task
    assert gate.pieces == []


async def test_abort_cancels_in_the_engine_and_raises_its_error(room):
    gate = await pushed(reply := room.accepted(2))
    reply.abort(RequestTimeout("too long"))
    assert room.sent == [protocol.Cancel(reply.id)]
    with pytest.raises(RequestTimeout):
        await gate.task
    reply.abort(RequestTimeout("again"))
    reply.cancel()
    assert len(room.sent) == 1


async def test_the_progress_of_the_prompt_is_pushed_without_tokens_or_with_the_next_ones(room):
    gate = await pushed(reply := room.accepted())
    room.deliver([protocol.Progress(reply.id, 2, 0, 1.0)])
    assert (gate.take(), reply.progress.tokens) == ([[]], 2)
    gate.shut()
    room.deliver([protocol.Progress(reply.id, 3, 0, 1.0)])
    room.deliver([Tokens(reply.id, 0, [1], None, "stop")])
    gate.open()
    await gate.task
    assert ([len(found) for found in gate.pieces], reply.progress.tokens) == ([1], 3)


async def test_records_for_unknown_ids_are_dropped(room):
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


async def test_prompt_logprobs_are_known_with_the_first_tokens(room):
    gate = await pushed(reply := room.accepted())
    room.deliver([protocol.PromptLogprobs(reply.id, [None, -0.5])])
    assert gate.pieces == []
    room.deliver([Tokens(reply.id, 0, [1], None, None)])
    assert len(gate.pieces) == 1
    assert reply.prompt_logprobs is not None
    assert reply.prompt_logprobs.logprobs == [None, -0.5]


async def test_tokens_in_the_frame_of_the_acceptance_are_there_at_once(room):
    reply = room.open(1)
    task = asyncio.create_task(reply.wait_accepted())
    await asyncio.sleep(0)
    room.deliver([protocol.Accepted(reply.id, 3, [7, 8, 9]), Tokens(reply.id, 0, [1], None, "stop")])
    await task
    assert (reply.prompt_tokens, reply.tokens) == (3, [7, 8, 9])
    assert [t.tokens for t in (await pushed(reply)).pieces[0]] == [[1]]


async def test_fail_all_gives_everybody_an_error_of_his_own(room):
    tasks = [(await pushed(room.accepted())).task for _ in range(2)]
    call = asyncio.create_task(room.call(protocol.Ping))
    waiting = asyncio.create_task(room.open(1).wait_accepted())
    await asyncio.sleep(0)
    room.fail_all(lambda: Unavailable("gone"))
    errors = await asyncio.gather(*tasks, call, waiting, return_exceptions=True)
    assert [str(error) for error in errors] == ["gone"] * 4
    assert len({id(error) for error in errors}) == 4
    assert not room.busy


async def test_a_call_that_was_given_up_leaves_nothing_behind(room):
    call = asyncio.create_task(room.call(protocol.Ping))
    await asyncio.sleep(0)
    assert room.busy
    call.cancel()
    room.deliver([protocol.Pong(1, {})])
    with pytest.raises(asyncio.CancelledError):
        await call
    assert not room.busy
    assert room.sent[-1] == protocol.Cancel(1)


async def test_an_answer_is_given_once(room):
    call = asyncio.create_task(room.call(lambda n: protocol.Encode(n, ["a"], True)))
    await asyncio.sleep(0)
    room.deliver([protocol.Encoded(1, [[4]]), protocol.Encoded(1, [[5]]), protocol.Refused(1, ["BadRequest"] * 4)])
    assert (await call).tokens == [[4]]


async def test_audio_that_waits_is_joined(room):
    reply = room.accepted()
    gate = await pushed(reply, is_open=False)
    room.deliver([protocol.SpokenTokens(reply.id, 0, [1], None, None, b"")])
    room.deliver([protocol.SpokenTokens(reply.id, 0, [], None, None, data) for data in (b"ab", b"cd")])
    room.deliver([protocol.SpokenTokens(reply.id, 0, [2], None, "stop", b"")])
    gate.open()
    await gate.task
    assert gate.pieces == [[protocol.SpokenTokens(reply.id, 0, [1, 2], None, "stop", b"abcd")]]
