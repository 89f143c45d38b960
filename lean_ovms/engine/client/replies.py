"""Routes each record of the engine to the request with its id.

This module knows records and futures, but no process, socket or clock. Each stream and call opened here ends exactly
once: by its last final record, by an error, or because its owner cancels it. It receives no records after that.
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
from ..protocol import ANSWER, COMMAND, PARTIAL


class Reply(Protocol):
    """The receiving side of a request or a call."""

    def receive(self, record: protocol.Record) -> None:
        """Handles a record with this reply's id. Raises FrameError if its type is wrong."""

    def fail(self, error: RequestError) -> None:
        """Ends the reply with an error."""


class LastingReply(Reply, Protocol):
    """A reply that survives the engine process: its request goes on with the next process."""

    def lost(self) -> RequestError | None:
        """Notes that the engine has died. Returns an error, or None if the request waits for the next engine."""

    def resume(self) -> None:
        """Sends the request, or the rest of it, to a new engine."""


L = TypeVar("L", bound=LastingReply)
Send = Callable[[protocol.Record], None]
Close = Callable[[int], None]
OnPartial = Callable[[Any], object] | None


@dataclass(slots=True, eq=False)
class ReplyStream:
    """The stream of replies to one request. It pushes them to one sink, and can cancel the request.

    Only here do tokens wait for a slow client: a record is merged with those that are not pushed yet. So the client
    gets larger pieces, max_tokens limits the memory, and the engine never waits.
    """

    _router: ReplyRouter  # of the engine that answers the request
    id: int
    """The id of the request."""
    sequences: InitVar[int]
    """The number of sequences of the request."""
    prompt_tokens: int = -1  # until the engine has accepted the request
    """The number of prompt tokens; with images of new sizes it is an estimate until the engine has counted them."""
    tokens: list[int] | None = None
    """The token ids of the prompt, if requested."""
    notices: list[str] = field(default_factory=list)
    """Warnings about parts of the request that the engine does not honour."""
    prompt_logprobs: protocol.PromptLogprobs | None = None
    """The log probabilities of the prompt tokens, if requested."""
    cached_tokens: int | None = None
    """The number of prompt tokens found in the prefix cache; None if unknown."""
    prefill_ms: float | None = None
    """The milliseconds of the prefill; None until the prompt is computed."""
    progress: protocol.Progress | None = None
    """The latest progress of the prompt. A new one is pushed as an empty list, or together with the next tokens."""
    absent: int = 0
    """The number of texts that a beam search was asked for, but did not find."""
    drafted: list[int] | None = None
    """The number of draft tokens in each draft of the sequences that have ended; None if unknown."""
    accepted: list[int] = field(default_factory=list)
    """The number of accepted tokens in each of these drafts."""
    _progressed: bool = False  # whether `progress` is not pushed yet
    _running: set[int] = field(init=False)  # the numbers of the sequences that have not ended
    _new: dict[int, protocol.Tokens] = field(default_factory=dict)  # by sequence, what is not pushed yet
    _error: Exception | None = None  # why the request failed
    _accepted: asyncio.Future[None] | None = None  # done when the engine accepts or ends the request
    _sink: Sink[list[protocol.Tokens]] | None = None  # set while `push_to` runs
    _paused: asyncio.Future[None] | None = None  # the sink's, that `flush` waits for
    _ended: asyncio.Future[None] | None = None  # done when all is pushed; `push_to` waits for it

    def __post_init__(self, sequences: int) -> None:
        self._running = set(range(sequences))

    @property
    def finished(self) -> bool:
        """Whether the engine will send no more records. Some may not have been pushed yet."""
        return not self._running

    async def push_to(self, sink: Sink[list[protocol.Tokens]]) -> None:
        """Pushes new tokens as they arrive, a record for each sequence that has any; returns after the last one.

        Raises RequestError if the engine failed the request or died, after pushing the tokens that arrived before. An
        exception of the sink is passed on.
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
        """Pushes what is new, or schedules this for when the sink is no longer paused. This is the hot path."""
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
        """Stops one sequence, or all of them, of which no more tokens are pushed. It may be called again."""
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
        """Stops all sequences; `push_to` raises this error after the tokens that have arrived, if it has not ended."""
        if self._running:
            self._router.send(protocol.Cancel(self.id))
            self.fail(error)

    def break_off(self, error: Exception) -> None:
        """Stops all sequences because the sink has failed; `push_to` raises this error."""
        self._error = error
        self.cancel()

    async def wait_accepted(self) -> None:
        """Waits until the engine has accepted the request. Raises the error if it is refused."""
        if self.prompt_tokens < 0 and self._running:
            self._accepted = asyncio.get_running_loop().create_future()
            await self._accepted
        if self.prompt_tokens < 0 and self._error is not None:
            raise self._error

    # --- for the router

    def add(self, record: protocol.Tokens) -> bool:
        """Adds a record of new tokens, once per token (the hot path). Returns whether nothing else waits to be pushed.

        If so, the caller must call `flush`. Records of finished or cancelled sequences are dropped.
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
        """Handles a record other than Tokens, mostly about the prompt. Raises FrameError for another task's record."""
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
                raise protocol.FrameError(f"{record.kind} does not answer a generation request")

    def _end(self) -> None:
        """Closes the stream if all sequences have ended, the last of them without a final record."""
        if not self._running:
            self._router.close(self.id)
            wake(self._accepted)
            self.flush()


class CallReply:
    """The reply to a call: one record, which may follow partial records that are passed to on_partial."""

    def __init__(self, on_partial: OnPartial) -> None:
        self.on_partial = on_partial
        self.answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    def receive(self, record: protocol.Record) -> None:
        if record.role == PARTIAL and self.on_partial is not None:
            self.on_partial(record)
            return
        if record.role != ANSWER:
            raise protocol.FrameError(f"{record.kind} does not answer a call")
        if not self.answer.done():
            self.answer.set_result(record.answer())

    def fail(self, error: RequestError) -> None:
        if not self.answer.done():
            self.answer.set_exception(error)


class ReplyRouter:
    """The open replies of one engine by id. Ids are never reused, not even after a restart of the engine process."""

    def __init__(self, send: Callable[[protocol.Record], None]) -> None:
        self.send = send
        self._ids = itertools.count(1)
        self._replies: dict[int, Reply] = {}
        self._lasting: dict[int, LastingReply] = {}  # those of them that outlive an engine

    @property
    def busy(self) -> bool:
        """Whether any requests or calls are in flight."""
        return bool(self._replies)

    def __len__(self) -> int:
        """Returns the number of requests and calls in flight."""
        return len(self._replies)

    def open(self, sequences: int) -> ReplyStream:
        """Creates a stream for a new request with this number of sequences."""
        number = next(self._ids)
        reply = self._replies[number] = ReplyStream(self, number, sequences)
        return reply

    def add_lasting(self, make: Callable[[int], L]) -> L:
        """Adds and returns the reply that `make` returns for a new id, and that survives a restart of the engine."""
        number = next(self._ids)
        reply = self._replies[number] = self._lasting[number] = make(number)
        return reply

    def close(self, number: int) -> None:
        """Removes a request that has ended. Later records for it are dropped."""
        self._replies.pop(number, None)
        self._lasting.pop(number, None)

    async def call(self, make: Callable[[int], protocol.Record], on_partial: OnPartial = None) -> Any:
        """Sends the record that `make` makes for a new id, passes each partial record on, and returns the reply.

        If the waiting task is cancelled, the call is cancelled in the engine, too. Work there that has no steps is not
        interrupted once it has begun. Raises RequestError if the engine refuses the call, or has stopped.
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
        """Routes records of the engine. Those with unknown ids belong to cancelled requests, and are dropped.

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
        """Fails every stream and call, each with a new error from `error`."""
        for reply in list(self._replies.values()):
            reply.fail(error())

    def fail_lost(self, error: Callable[[], RequestError]) -> None:
        """Fails every stream and call that is lost with the engine process, each with a new error from `error`.

        Those that survive a restart go on, except a request that may have killed the process.
        """
        for number, reply in list(self._replies.items()):
            failure = self._lasting[number].lost() if number in self._lasting else error()
            if failure is not None:
                reply.fail(failure)

    def resume(self) -> None:
        """Makes the replies that survived a restart send their requests to the new engine, which is ready."""
        for reply in list(self._lasting.values()):
            reply.resume()
