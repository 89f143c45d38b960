"""The child's loop: take all commands, step, report. It waits for a command only when nothing lives.

It knows no openvino and no asyncio: any contract.Pipeline and any link.Link will do. One frame goes out per step, and
one before it if commands were answered, so that the front end learns of an acceptance without waiting for the step.
"""

from __future__ import annotations

import logging
from dataclasses import asdict, dataclass

from ..errors import BadRequest, EngineFailure, RequestError, TooManyRequests
from . import checks
from .batch import Batch
from .contract import Pipeline
from .intake import Intake
from .link import Link
from .messages import (
    Accepted,
    Cancel,
    Decode,
    Decoded,
    Encode,
    Encoded,
    Ping,
    Pong,
    Record,
    Refused,
    Submit,
)


log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How much the worker takes on. queued: requests that wait; running: sequences at once; sequences: per request."""

    queued: int
    running: int
    sequences: int


class Worker:
    """Serves one pipeline to one front end."""

    def __init__(self, pipeline: Pipeline, link: Link, limits: Limits) -> None:
        self.pipeline = pipeline
        self.link = link
        self.limits = limits
        self.batch = Batch(pipeline, limits.running)
        self.intake = Intake(pipeline, limits.sequences)

    def run(self) -> None:
        """Until the front end closes the link. Raises recovery.EngineLost when the process must be replaced."""
        try:
            while self.turn():
                pass
        finally:
            self._flush()

    def turn(self) -> bool:
        """One turn of the loop; False when the link is closed."""
        batch = self.batch
        commands = self.link.take(batch.idle)
        if commands is None:
            return False
        for command in commands:
            self._obey(command)
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

    def _obey(self, command: Record) -> None:
        batch = self.batch
        if isinstance(command, Submit):
            batch.out.append(self._submit(command))
        elif isinstance(command, Cancel):
            batch.cancel(command.id, command.index)
        elif isinstance(command, Ping):
            batch.out.append(Pong(command.id, asdict(batch.stats())))
        elif isinstance(command, Encode | Decode):
            batch.out.append(self._translate(command))

    def _submit(self, submit: Submit) -> Record:
        try:
            if submit.id in self.batch.requests:
                raise BadRequest(f"request {submit.id} exists already")
            self._queue_check()
            request = self.intake.request(submit)
        except Exception as error:  # the border of the worker's loop
            return _refusal(submit, error)
        self.batch.put(request)
        prompt = request.sequences[0].prompt
        return Accepted(submit.id, len(prompt), prompt if submit.want_tokens else None)

    def _queue_check(self) -> None:
        """Raises TooManyRequests. Looked at before a prompt is tokenized, so that a flood costs next to nothing."""
        limit = self.limits.queued
        if len(self.batch.waiting) < limit:
            return
        self.batch.admit()
        if self.batch.queued_requests() >= limit:
            raise TooManyRequests(f"{limit} requests are waiting already; please try again later")

    def _translate(self, command: Encode | Decode) -> Record:
        pipeline = self.pipeline
        try:
            if isinstance(command, Encode):
                texts = [pipeline.encode(text, command.add_special_tokens) for text in command.texts]
                return Encoded(command.id, texts)
            checks.token_ids(command.tokens, pipeline.info.vocab_size, "tokens")
            return Decoded(command.id, pipeline.decode(command.tokens, command.skip_special_tokens))
        except Exception as error:  # the border of the worker's loop
            return _refusal(command, error)


def _refusal(command: Submit | Encode | Decode, error: Exception) -> Refused:
    """The answer to a command that failed: an error in one request must not end the process of all."""
    if not isinstance(error, RequestError):
        log.error("%s %d failed", command.kind, command.id, exc_info=error)
        error = EngineFailure("The engine could not process this request.")
    return Refused(command.id, error.to_wire())
