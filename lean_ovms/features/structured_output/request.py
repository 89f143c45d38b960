"""The constraint of one request, which is relaxed if it cannot be built or if the engine refuses it."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import orjson

from ...config import Config
from ...engine.client.interface import ModelEngine
from ...engine.client.replies import ReplyStream
from ...errors import GrammarInvalid, GrammarRefused, GrammarTooComplex
from ...grammar.call_syntax import GrammarContext
from ...observability.logging import safe
from ...observability.records import Metrics
from ...types import OutputConstraint
from ...types.engine import EngineRequest
from ...util.concurrency import Offload
from . import constraint as grammar
from . import limits
from .constraint import Constraint
from .feature import NOT_IMPOSED, StructuredOutputOptions
from .limits import GrammarBounds

log = logging.getLogger(__name__)

INLINE_SCHEMAS = 2048
"""The most bytes of schemas whose grammar is built on the event loop. With 64 KiB it takes 90 ms."""


class StructuredOutput:
    """A request's constraint, of which a part is dropped whenever it cannot be enforced."""

    def __init__(
        self,
        constraint: OutputConstraint,
        context: GrammarContext,
        config: Config,
        offload: Offload,
        *,
        asked: bool = True,
    ) -> None:
        """Keeps the constraint and its context.

        Args:
            constraint: The constraint of the answer.
            context: The model and the prompt.
            config: The limits, and whether a part that is not enforced is an error.
            offload: The offload thread, in which the tag of large schemas is built.
            asked: Whether the client asked for the constraint. If not, dropping parts is neither an error nor reported.
        """
        options = config.of(StructuredOutputOptions)
        self._strict = asked and options.strict_response_format
        self._asked = asked
        self._constraint = constraint
        self._context = context
        self._bounds = GrammarBounds.of(options)
        self._offload = offload
        self._relaxed: list[str] = []
        self._ignored: list[str] = []

    @property
    def warnings(self) -> list[str]:
        """The parts of the constraint that are not enforced, one sentence each."""
        return self._relaxed + self._ignored if self._asked else []

    async def submit(self, engine: ModelEngine, request: EngineRequest) -> ReplyStream:
        """Submits the request, with a weaker constraint each time the engine refuses one. Raises RequestError."""
        constraint = await self._build()
        while True:
            try:
                reply = await engine.submit(replace(request, constraint=constraint))
            except GrammarRefused as error:
                await self._relax(error, constraint)
                constraint = await self._build()
            else:
                break
        try:
            self._note(reply.notices)
        except GrammarInvalid:
            reply.cancel()
            raise
        return reply

    def accepted(self, metrics: Metrics, model: str) -> None:
        """Logs and counts the warnings of an accepted request."""
        for warning in self.warnings:
            log.warning("%s", safe(warning))
        if self.warnings:
            metrics.add(NOT_IMPOSED, (model,))

    async def _build(self) -> str:
        """Builds the structural tag, from a weaker constraint if necessary; "" if nothing is left of it.

        Raises RequestError if it cannot be built and no part of the constraint may be dropped.
        """
        while True:
            try:
                built = await self._built()
                if built.notices and self._strict:
                    raise GrammarInvalid(built.notices[0])
            except GrammarRefused as error:
                await self._relax(error)
            else:
                self._ignored = built.notices
                return built.tag

    def _note(self, notices: Sequence[str]) -> None:
        """Notes keywords of an accepted constraint that the engine's grammar library does not enforce.

        Raises GrammarInvalid if there are any and the client asked for a strict format.
        """
        if not notices:
            return
        self._ignored.append(f"not enforced in the schema of {grammar.subject(self._constraint)}: {', '.join(notices)}")
        if self._strict:
            raise GrammarInvalid(self._ignored[-1], param=self._constraint.param)

    async def _relax(self, error: GrammarRefused, tag: str = "") -> None:
        """Weakens the constraint, in a thread if its schemas are large; `tag` is the structural tag that was refused.

        Raises the error if no part may be dropped.
        """
        error.param = error.param or self._constraint.param
        if self._strict:
            raise error
        size = grammar.size(self._constraint, self._context.tools)
        texts = list(limits.expressions(orjson.loads(tag))) if error.reasons else []
        at_fault = {texts[int(number)]: why for number, why in error.reasons.items()}
        work = partial(grammar.relax, self._constraint, self._context, error, self._bounds, at_fault)
        self._constraint, self._context, notices = await self._offload.run(size, work, inline_below=INLINE_SCHEMAS)
        self._relaxed += notices

    async def _built(self) -> Constraint:
        """Builds the tag of the constraint, in a thread if large. Raises GrammarRefused."""
        size, limit = grammar.size(self._constraint, self._context.tools), self._bounds.bytes
        if size > limit:
            raise GrammarTooComplex(f"The schemas have more than {limit} bytes")
        work = partial(grammar.build, self._constraint, self._context)
        return await self._offload.run(size, work, inline_below=INLINE_SCHEMAS)
