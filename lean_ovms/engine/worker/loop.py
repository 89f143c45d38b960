"""The child's loop: take all commands, step, report. It waits for a command only when nothing lives.

It knows no openvino and no asyncio: any contract.Pipeline and any link.Link will do. One frame goes out per step, and
one before it if commands were answered, so that the front end learns of an acceptance without waiting for the step.
"""

from __future__ import annotations

import logging
import math
from collections import deque
from dataclasses import asdict, dataclass
from itertools import chain

from ...errors import BadRequest, EngineFailure, GrammarInvalid, RequestError, TooManyRequests
from ..generation import validation
from ..generation.admission import Admission
from ..generation.grammar_queue import GrammarQueue
from ..generation.pipeline import Pipeline
from ..generation.scheduler import Scheduler
from ..generation.sequence import Request
from ..protocol import Accepted, Cancel, Decode, Decoded, Encode, Encoded, Ping, Pong, Record, Refused, Submit
from .transport import Link

log = logging.getLogger(__name__)

MAX_ENCODE_CHARACTERS = 4 << 20
"""Of one Encode: half a second to three in which nobody else gets a token."""


MOST_WAIT_S = 60
"""Largest Retry-After of a full queue."""


SLICE = 1 << 16
"""Characters to tokenize between two steps, if that can be chosen: 2 to 45 ms, by tokenizer."""
CALL_CHARACTERS = 64
"""What tokenizing any text costs, in characters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How much the worker takes on. queued: requests that wait; running: sequences at once; sequences: per request."""

    queued: int
    running: int
    sequences: int


class Worker:
    """Serves one pipeline to one front end."""

    def __init__(self, pipeline: Pipeline, link: Link, limits: Limits, gate: GrammarQueue | None = None) -> None:
        """gate: for requests with a grammar; they are refused without one."""
        self.pipeline = pipeline
        self.link = link
        self.limits = limits
        self.batch = Scheduler(pipeline, limits.running)
        self.intake = Admission(pipeline, limits.sequences)
        self.gate = gate
        self._backlog: deque[Record] = deque()  # commands that have come and were not obeyed yet
        self._encoded: dict[int, list[list[int]]] = {}  # the first texts of an Encode that is not done

    def run(self) -> None:
        """Until the front end closes the link. Raises EngineLost when the process must be replaced."""
        try:
            while self.turn():
                pass
        finally:
            self._flush()

    def turn(self) -> bool:
        """One turn of the loop; False when the link is closed."""
        batch = self.batch
        commands = self.link.take(batch.idle and not self._backlog)
        if commands is None:
            return False
        self._backlog.extend(commands)
        self._hear()
        if self.gate is not None and (self.gate.waiting or self.gate.compiling):
            self._open(self.gate)
        if batch.waiting:
            batch.admit()
        self._flush()
        if not batch.idle:
            batch.step()
            self._flush()
        return True

    def _flush(self) -> None:
        if self.batch.out:
            self.link.send(self.batch.out)
            self.batch.out.clear()

    # --- commands

    def _hear(self) -> None:
        """Obey commands in their order; while others run, only as many as have SLICE characters to tokenize."""
        left = SLICE
        while self._backlog:
            command = self._backlog.popleft()
            if isinstance(command, Encode):
                left -= self._encode(command)
            else:
                if isinstance(command, Submit):
                    left -= len(command.prompt)
                self._obey(command)
            if left <= 0 and not self.batch.idle:
                return

    def _obey(self, command: Record) -> None:
        batch = self.batch
        if isinstance(command, Submit):
            self._submit(command)
        elif isinstance(command, Cancel):
            batch.cancel(command.id, command.index)
            if self.gate is not None:
                self.gate.leave(command.id, command.index)
        elif isinstance(command, Ping):
            batch.out.append(Pong(command.id, self._stats()))
        elif isinstance(command, Decode):
            batch.out.append(self._decode(command))

    def _stats(self) -> dict[str, int]:
        stats: dict[str, int] = asdict(self.batch.stats())
        stats["queued"] += self.gate.waiting if self.gate is not None else 0
        return stats

    def _submit(self, submit: Submit) -> None:
        try:
            if submit.id in self.batch.requests:
                raise BadRequest(f"request {submit.id} exists already")
            self._queue_check()
            request = self.intake.request(submit)
            ready = not request.constraint or self._enter(submit, request)
        except Exception as error:  # the border of the worker's loop
            self.batch.out.append(_refusal(submit, error))
            return
        if ready:
            self._take_on(submit, request)

    def _enter(self, submit: Submit, request: Request) -> bool:
        """Whether a request with a grammar may run now; else it waits at the gate. Raises RequestError."""
        if self.gate is None:
            raise GrammarInvalid("Structured output is not possible with this model")
        return self.gate.enter(submit, request)

    def _open(self, gate: GrammarQueue) -> None:
        """Take on those whose grammar is compiled, refuse those whose grammar is not good."""
        batch = self.batch
        calm = all(s.has_output or not s.constrained for s in chain(batch.running, batch.waiting))
        for submit, request, error in gate.turn(calm):
            if error is None:
                self._take_on(submit, request)
            else:
                batch.out.append(Refused(submit.id, error.to_wire()))
        batch.compiling = gate.compiling

    def _take_on(self, submit: Submit, request: Request) -> None:
        self.batch.put(request)
        prompt = request.sequences[0].prompt
        shown = submit.want_tokens and not submit.images  # there are no ids for an image
        self.batch.out.append(Accepted(submit.id, len(prompt), prompt if shown else None))

    def _queue_check(self) -> None:
        """Raises TooManyRequests. Looked at before a prompt is tokenized, so that a flood costs next to nothing."""
        limit = self.limits.queued - (self.gate.waiting if self.gate is not None else 0)
        if len(self.batch.waiting) < limit:
            return
        self.batch.admit()
        if self.batch.queued_requests() >= limit:
            error = TooManyRequests(f"{self.limits.queued} requests are waiting already; please try again later")
            # When an eighth of the queue will have begun: earlier the next one finds it full again, later it is idle.
            error.retry_after_s = max(1, min(MOST_WAIT_S, math.ceil(self.batch.pace_s() * limit / 8)))
            raise error

    def _encode(self, command: Encode) -> int:
        """Tokenize texts for one turn, and go on with the rest in the next; about how many characters it were."""
        done, size = self._encoded.pop(command.id, []), 0
        try:
            if sum(map(len, command.texts)) > MAX_ENCODE_CHARACTERS:
                raise BadRequest(f"more than {MAX_ENCODE_CHARACTERS} characters to tokenize")
            while len(done) < len(command.texts) and size < SLICE:
                text = command.texts[len(done)]
                done.append(self.pipeline.encode(text, command.add_special_tokens))
                size += len(text) + CALL_CHARACTERS
        except Exception as error:  # the border of the worker's loop
            self.batch.out.append(_refusal(command, error))
            return size
        if len(done) == len(command.texts):
            self.batch.out.append(Encoded(command.id, done))
        else:
            self._encoded[command.id] = done
            self._backlog.appendleft(command)
        return size

    def _decode(self, command: Decode) -> Record:
        pipeline = self.pipeline
        try:
            validation.token_ids(command.tokens, pipeline.info.vocab_size, "tokens")
            return Decoded(command.id, pipeline.decode(command.tokens, command.skip_special_tokens))
        except Exception as error:  # the border of the worker's loop
            return _refusal(command, error)


def _refusal(command: Submit | Encode | Decode, error: Exception) -> Refused:
    """The answer to a command that failed: an error in one request must not end the process of all."""
    if not isinstance(error, RequestError):
        log.error("%s %d failed", command.kind, command.id, exc_info=error)
        error = EngineFailure("The engine could not process this request.")
    return Refused(command.id, error.to_wire())
