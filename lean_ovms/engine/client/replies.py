"""Routes every record of the engine to the request with its id.

Knows records and futures; no process, no socket, no clock. One rule: every stream and call opened here ends exactly
once, by its last final, by an error, or because its owner cancelled it; after that it gets no more records.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from dataclasses import InitVar, dataclass, field
from typing import Any, Protocol, TypeVar

from ...errors import RequestError, from_wire
from ...types.push import Sink, wake
from .. import protocol
from ..record import ANSWER, COMMAND, PARTIAL


class Reply(Protocol):
    """A reply that a request or a call waits for."""

    def receive(self, record: protocol.Record) -> None:
        """Takes a record with its id. Raises FrameError for one that does not fit."""

    def fail(self, error: RequestError) -> None:
        """Ends it with this error."""


class LastingReply(Reply, Protocol):
    """A reply that outlives an engine: its request goes on with the next one."""

    def lost(self) -> RequestError | None:
        """Notes that the engine has died. Returns the error of the request; None: it waits for the next engine."""

    def resume(self) -> None:
        """Sends the request, or what is left of it, to a new engine."""


L = TypeVar("L", bound=LastingReply)
Send = Callable[[protocol.Record], None]
Close = Callable[[int], None]
OnPartial = Callable[[Any], object] | None


@dataclass(slots=True, eq=False)
class ReplyStream:
    """The replies to one request, and its cancellation. They are pushed to one sink.

    Here is the one place where tokens wait for a slow client: a record is merged into those not pushed yet, so that it
    gets bigger pieces, memory is bounded by max_tokens, and the engine never waits.
    """

    _router: ReplyRouter
    id: int
    """The number of the request."""
    sequences: InitVar[int]
    """The number of the request's sequences."""
    prompt_tokens: int = -1  # until accepted
    """The tokens of the prompt; for images of new sizes an estimate until the engine has counted them."""
    tokens: list[int] | None = None
    """The ids of the prompt, if they were requested."""
    notices: list[str] = field(default_factory=list)
    """What the engine does not honour of the request."""
    prompt_logprobs: protocol.PromptLogprobs | None = None
    """The log probabilities of the prompt's tokens, if they were requested."""
    cached_tokens: int | None = None
    """The tokens of the prompt from the prefix cache; None if that is not known."""
    prefill_ms: float | None = None
    """The milliseconds that the prompt took; None until it is computed."""
    progress: protocol.Progress | None = None
    """The last report about the prompt; a new one is pushed as an empty list, or with the next tokens."""
    absent: int = 0
    """The number of texts that a beam search was asked for and has not found."""
    drafted: list[int] | None = None
    """The tokens of each draft of sequences that have ended; None: not known."""
    accepted: list[int] = field(default_factory=list)
    """The tokens of each of these drafts that were kept."""
    _progressed: bool = False
    _running: set[int] = field(init=False)
    _new: dict[int, protocol.Tokens] = field(default_factory=dict)
    _error: Exception | None = None
    _accepted: asyncio.Future[None] | None = None
    _sink: Sink[list[protocol.Tokens]] | None = None
    _paused: asyncio.Future[None] | None = None  # the sink's, that `flush` waits for
    _ended: asyncio.Future[None] | None = None

    def __post_init__(self, sequences: int) -> None:
        self._running = set(range(sequences))

    @property
    def finished(self) -> bool:
        """No more records will come from the engine; there may be some that are not pushed."""
        return not self._running

    async def push_to(self, sink: Sink[list[protocol.Tokens]]) -> None:
        """Pushes new tokens as they come, one record per sequence that has some; returns after the last final.

        Raises RequestError when the engine failed the request or died, after the tokens that had arrived before; and
        what the sink raised.
        """
        self._sink, self._ended = sink, asyncio.get_running_loop().create_future()
        try:
            self.flush()
            await self._ended
        finally:
            self._sink = None
        if self._error is not None:
            raise self._error

    def flush(self, _: object = None) -> None:
        """Pushes what is new (the hot path); when the sink is paused, as soon as it is not."""
        sink = self._sink
        if sink is None:
            return
        while (paused := sink.paused()) is None:
            if self._new or self._progressed:
                new, self._new, self._progressed = self._new, {}, False
                try:
                    sink.push(list(new.values()))
                except Exception as error:
                    self.break_off(error)
                if self._running:
                    return
            elif self._running:
                return
            else:
                wake(self._ended)
                return
        if paused is not self._paused:
            self._paused = paused
            paused.add_done_callback(self.flush)

    def cancel(self, index: int | None = None) -> None:
        """Stops one sequence, or all, finished or not. No more of its tokens are pushed. Idempotent."""
        if index is None:
            self._new = {}
        else:
            self._new.pop(index, None)
        cancelled = set(self._running) if index is None else self._running & {index}
        if not cancelled:
            return
        self._running -= cancelled
        self._router.send(protocol.Cancel(self.id, index))
        self._end()

    def abort(self, error: RequestError) -> None:
        """Stops all; `push_to` raises this error after the tokens that have arrived. Nothing if it is finished."""
        if self._running:
            self._router.send(protocol.Cancel(self.id))
            self.fail(error)

    def break_off(self, error: Exception) -> None:
        """Stops all, finished or not: the sink has failed. `push_to` raises this error."""
        self._error = error
        self.cancel()

    async def wait_accepted(self) -> None:
        """Waits until the engine has accepted the request. Raises its refusal. For Engine.submit."""
        if self.prompt_tokens < 0 and self._running:
            self._accepted = asyncio.get_running_loop().create_future()
            await self._accepted
        if self.prompt_tokens < 0 and self._error is not None:
            raise self._error

    # --- for the router

    def add(self, record: protocol.Tokens) -> bool:
        """Adds a record, once per token (the hot path). Returns whether it is the first not pushed: `flush` follows.

        Dropped for a sequence that is finished or cancelled.
        """
        index = record.index
        if index not in self._running:
            return False
        new = self._new
        first = not new
        waiting = new.get(index)
        if waiting is None:
            new[index] = record
        else:
            waiting.tokens += record.tokens
            if record.logprobs is not None:
                waiting.logprobs = (waiting.logprobs or []) + record.logprobs
                if isinstance(waiting, protocol.DetailedTokens) and isinstance(record, protocol.DetailedTokens):
                    waiting.top += record.top
            if isinstance(waiting, protocol.SpokenTokens) and isinstance(record, protocol.SpokenTokens):
                waiting.audio += record.audio
            waiting.reason = record.reason
        if record.reason is not None:
            self._running.discard(index)
            if record.reason == protocol.ABSENT:
                del new[index]
                self.absent += 1
            if not self._running:
                self._router.close(self.id)
        return first

    def fail(self, error: RequestError) -> None:
        self._running.clear()
        self._error = error
        self._end()

    def receive(self, record: protocol.Record) -> None:
        """Takes a record that is not Tokens: most are about the prompt. Raises FrameError for one of another task."""
        match record:
            case protocol.Accepted():
                self.prompt_tokens, self.tokens, self.notices = record.prompt_tokens, record.tokens, record.notices
                wake(self._accepted)
            case protocol.Counted():
                self.prompt_tokens = record.prompt_tokens
            case protocol.Prefilled():
                self.cached_tokens, self.prefill_ms = record.cached, record.ms
            case protocol.Drafted():
                self.drafted = (self.drafted or []) + record.tokens
                self.accepted += record.accepted
            case protocol.PromptLogprobs():
                self.prompt_logprobs = record
            case protocol.Progress():
                self.progress, self._progressed = record, True
                self.flush()
            case protocol.DetailedTokens() | protocol.SpokenTokens():
                self.add(record)
                self.flush()
            case _:
                raise protocol.FrameError(f"{record.kind} is no answer to a request for text")

    def _end(self) -> None:
        """Closes the stream where the last sequence has ended without a final."""
        if not self._running:
            self._router.close(self.id)
            wake(self._accepted)
            self.flush()


class CallReply:
    """The one record that answers a call, after partial ones, which on_partial gets."""

    def __init__(self, on_partial: OnPartial) -> None:
        self.on_partial = on_partial
        self.answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    def receive(self, record: protocol.Record) -> None:
        if record.role == PARTIAL and self.on_partial is not None:
            self.on_partial(record)
            return
        if record.role != ANSWER:
            raise protocol.FrameError(f"{record.kind} is no answer to a call")
        if not self.answer.done():
            self.answer.set_result(record.answer())

    def fail(self, error: RequestError) -> None:
        if not self.answer.done():
            self.answer.set_exception(error)


class ReplyRouter:
    """The open replies of one engine, by id. Ids are never reused, not even after a restart of the child."""

    def __init__(self, send: Callable[[protocol.Record], None]) -> None:
        self.send = send
        self._ids = itertools.count(1)
        self._replies: dict[int, Reply] = {}
        self._lasting: dict[int, LastingReply] = {}  # those of them that outlive an engine

    @property
    def busy(self) -> bool:
        """Requests or calls are in flight."""
        return bool(self._replies)

    def __len__(self) -> int:
        """Returns how many requests and calls are in flight."""
        return len(self._replies)

    def open(self, sequences: int) -> ReplyStream:
        """Returns a stream for a new request with this number of sequences."""
        number = next(self._ids)
        reply = self._replies[number] = ReplyStream(self, number, sequences)
        return reply

    def add_lasting(self, make: Callable[[int], L]) -> L:
        """Returns the reply that `make` returns for a new id, which goes on after a restart of the engine."""
        number = next(self._ids)
        reply = self._replies[number] = self._lasting[number] = make(number)
        return reply

    def close(self, number: int) -> None:
        """Forgets a request that has ended; later records for it are dropped."""
        self._replies.pop(number, None)
        self._lasting.pop(number, None)

    async def call(self, make: Callable[[int], protocol.Record], on_partial: OnPartial = None) -> Any:
        """Sends a record and waits for the one reply to it. A waiting task that is cancelled cancels it in the engine,
        too: what has no steps ends there once it has begun.

        Args:
            make: Makes the record for a new id.
            on_partial: Is called with each partial record before the reply.

        Raises:
            RequestError: The engine refuses it, or has stopped.
        """
        number, reply = next(self._ids), CallReply(on_partial)
        self._replies[number] = reply
        try:
            self.send(make(number))
            return await reply.answer
        except asyncio.CancelledError:
            self.send(protocol.Cancel(number))
            raise
        finally:
            self.close(number)

    def deliver(self, records: list[protocol.Record]) -> None:
        """Routes the engine's records. Those with unknown ids are dropped: their requests were cancelled.

        Raises FrameError for a record that an engine never sends.
        """
        replies = self._replies
        new: list[ReplyStream] = []
        for record in records:
            if type(record) is protocol.Tokens:
                reply = replies.get(record.id)
                if type(reply) is ReplyStream and reply.add(record):
                    new.append(reply)
            else:
                self._deliver_rare(record)
        for stream in new:  # after all: where several steps have come at once, a stream sends one chunk
            stream.flush()

    def _deliver_rare(self, record: protocol.Record) -> None:
        number = getattr(record, "id", None)
        if number is None or record.role == COMMAND:
            raise protocol.FrameError(f"an engine does not send {record.kind}")
        reply = self._replies.get(number)
        if reply is None:
            return
        if isinstance(record, protocol.Refused | protocol.Failed):
            reply.fail(from_wire(record.error))
        else:
            reply.receive(record)

    def fail_all(self, error: Callable[[], RequestError]) -> None:
        """Ends every stream and call as the engine is gone, each with an error of its own."""
        for reply in list(self._replies.values()):
            reply.fail(error())

    def fail_lost(self, error: Callable[[], RequestError]) -> None:
        """Ends every stream and call that is lost with the engine, each with an error of its own.

        Those that wait for the new engine go on, except for what may have killed the old one.
        """
        for number, reply in list(self._replies.items()):
            failure = self._lasting[number].lost() if number in self._lasting else error()
            if failure is not None:
                reply.fail(failure)

    def resume(self) -> None:
        """Sends the new engine, which is ready, what waits for it."""
        for reply in list(self._lasting.values()):
            reply.resume()
