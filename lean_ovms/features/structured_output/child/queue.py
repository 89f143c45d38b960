"""The queue of requests whose grammars have not been checked and compiled yet.

A new grammar is first checked by its text (limits.py), then compiled and tried in a process that can be killed
(checker.py), and then compiled in this process, before its request may run. Both compilations run in threads while the
engine's loop goes on. One grammar is checked at a time, and the clients take turns. Results are remembered. Everything
else in this module runs in the loop's thread and never blocks.

GenAI's lists are not thread-safe: while a thread compiles, no request with a grammar may have its first step. So a
compilation starts only if no such request is about to have it (`may_compile`), and no request is released meanwhile.
"""

from __future__ import annotations

import json
import logging
import time
from collections import OrderedDict, deque
from collections.abc import Callable
from typing import NamedTuple, Protocol

from ....config import EngineConfig
from ....engine.generation.fair_queue import GenerationRequest
from ....engine.generation.worker_thread import WorkerThread
from ....engine.protocol import Submit
from ....errors import (
    EngineFailure,
    GrammarRefused,
    RequestError,
    TooManyRequests,
    Unavailable,
    from_wire,
)
from .. import limits
from ..feature import StructuredOutputOptions
from ..limits import GrammarBounds, GrammarCost

log = logging.getLogger(__name__)

INLINE_BYTES = 4096
"""The longest grammar whose text is checked here; longer ones take up to 90 ms, and are checked in a thread."""
MOST = 32
"""The most grammars that wait to be compiled, at most half of which may be one client's. More are status 429."""
RESULTS, RESULT_BYTES = 512, 8 << 20
"""The most results of checks that are remembered, and the most characters of their grammars."""
IDLE_S = 120.0
"""The seconds without a new grammar after which the checker's process is stopped."""
FAULTS_FACTOR = 2
"""The time for finding which parts of a refused grammar are at fault, in multiples of that for compiling one."""
RETRY_AFTER_S = 2
"""The seconds after which a client should try again if the queue has no place for its grammar."""
MIN_BYTES = 256 << 10
"""The bytes that a compiled grammar counts at least: those of an ordinary schema with 131k tokens."""


class Compiler(Protocol):
    """Compiles grammars for an engine in advance, outside of its steps."""

    def compile(self, tag: str) -> None:
        """Compiles a grammar, with the GIL released. Raises errors.BadRequest."""

    def clear(self) -> None:
        """Drops everything that is compiled. It is called between steps only."""


class GrammarChecker(Protocol):
    """Finds out if a grammar can be compiled, and how fast, safely. Its methods block their caller only."""

    def check(self, tag: str, bounds: GrammarBounds) -> GrammarCost:
        """Returns the cost of a grammar. Raises RequestError if it is invalid, beyond the bounds, or too slow."""

    def stop(self) -> object:
        """Frees the resources of checking; the next `check` takes them again."""


class GrammarOutcome(NamedTuple):
    """A request that no longer waits for its grammar, since that is ready or has failed."""

    submit: Submit
    """The command of the request."""
    request: GenerationRequest
    """The request."""
    error: RequestError | None
    """The error with which the request is refused; None if it may run."""


class GrammarQueue:
    """Holds requests until their grammars are compiled. A grammar is a structural tag, which is JSON text."""

    def __init__(
        self, compiler: Compiler, checker: GrammarChecker, wake: Callable[[], None], config: EngineConfig
    ) -> None:
        """Makes an empty queue.

        Args:
            compiler: Compiles grammars in this process.
            checker: Checks grammars before they are compiled.
            wake: Ends the wait of the engine's loop; it is called from threads.
            config: The engine's configuration, with the limits of grammars.
        """
        self._compiler, self._checker = compiler, checker
        options = config.of(StructuredOutputOptions)
        self.bounds = GrammarBounds.of(options)
        self.compiled_bytes = options.grammar_cache_mb << 20
        self._timeout_s = options.grammar_timeout_s
        self._waiting: dict[str, list[tuple[Submit, GenerationRequest]]] = {}  # waiting requests by tag
        self._results = _CheckResults()
        self._checked: deque[str] = deque()  # tags that passed the check and are not compiled in this process
        self._compiled: dict[str, GrammarCost | None] = {}
        self._compiled_bytes = 0
        self._checks: WorkerThread[GrammarCheck, GrammarCost | GrammarRefused] = WorkerThread(
            "grammar-check",
            self._check,
            wake,
            "the grammar could not be checked: {}",
            wanted=lambda check: self._is_wanted(check.tag),
            idle_s=IDLE_S,
            on_idle=checker.stop,
        )
        self._compilations: WorkerThread[str, None] = WorkerThread(
            "grammar-compile", compiler.compile, wake, "the grammar could not be compiled: {}"
        )

    @property
    def waiting(self) -> int:
        return sum(map(len, self._waiting.values())) if self._waiting else 0

    def waiting_of(self, client: str) -> int:
        return sum(submit.client == client for items in self._waiting.values() for submit, _ in items)

    @property
    def compiling(self) -> bool:
        """Whether a thread compiles. No request with a grammar may have its first step then, even a preempted one."""
        return self._compilations.busy

    def add(self, submit: Submit, request: GenerationRequest) -> bool:
        """Returns whether a request may run now. If not, it waits until `poll` returns it. Raises RequestError."""
        tag = submit.constraint
        result = self._results.get(tag)
        if isinstance(result, RequestError):
            # A new exception each time, because an exception collects the tracebacks of all times it is raised.
            raise from_wire(result.to_wire())
        if tag in self._compiled and not self.compiling:
            request.cost = self._compiled[tag]
            return True
        if tag not in self._waiting:
            self._start(tag, result, request.client or str(submit.id))
        self._waiting.setdefault(tag, []).append((submit, request))
        self._checks.start()
        return False

    def cancel(self, request_id: int) -> None:
        """Drops a cancelled request. Ids that are not in the queue are ignored."""
        for items in self._waiting.values():
            items[:] = [item for item in items if item[0].id != request_id]

    def poll(self, may_compile: bool) -> list[GrammarOutcome]:
        """Returns the requests that no longer wait for their grammars.

        A grammar may be compiled now if no request with one is about to have its first step (`may_compile`).
        """
        if not self._waiting and not self.compiling:
            return []
        outcomes: list[GrammarOutcome] = []
        for check, checked in self._checks.poll():
            if isinstance(checked, GrammarRefused) and check.unfinished:
                self._checks.add(check.client, check)
                continue
            self._results.add(check.tag, checked)
            if isinstance(checked, RequestError):
                outcomes += self._release(check.tag, checked)
            else:
                self._checked.append(check.tag)
        for tag, error in self._compilations.poll():
            if error is not None:
                outcomes += self._release(tag, error)
            else:
                known = self._results.get(tag)
                self._compiled[tag] = known if isinstance(known, GrammarCost) else None
        self._checks.start()
        if not self.compiling:
            for tag in [tag for tag in self._waiting if tag in self._compiled]:
                outcomes += self._release(tag, None)
            if may_compile and not outcomes:
                self._compile_next()
        return outcomes

    # --- the loop's thread

    def _start(self, tag: str, result: GrammarCost | None, client: str) -> None:
        """Queues a grammar, for which no request waits yet, for checking, or for compiling if it was checked before."""
        if result is not None:
            if tag not in self._compiled:
                self._checked.append(tag)
            return
        if len(tag) <= INLINE_BYTES:
            limits.check(tag, self.bounds)
        full = len(self._waiting) >= MOST
        if full or self._checks.queued(client) >= max(1, MOST // 2):
            text = "too many new grammars are waiting to be compiled; please try again later"
            raise TooManyRequests(text, retry_after_s=RETRY_AFTER_S)
        self._checks.add(client, GrammarCheck(tag, client, FAULTS_FACTOR * self._timeout_s))

    def _is_wanted(self, tag: str) -> bool:
        wanted = bool(self._waiting.get(tag))
        if not wanted:
            self._waiting.pop(tag, None)  # all requests with this tag were cancelled
        return wanted

    def _release(self, tag: str, error: RequestError | None) -> list[GrammarOutcome]:
        items = self._waiting.pop(tag, [])
        for _, request in items:
            request.cost = self._compiled.get(tag)
        return [GrammarOutcome(submit, request, error) for submit, request in items]

    def _compile_next(self) -> None:
        while self._checked:
            tag = self._checked.popleft()
            if not self._is_wanted(tag):
                continue
            if self._compiled_bytes > self.compiled_bytes:
                self._drop_compiled()
            result = self._results.get(tag)
            self._compiled_bytes += max(MIN_BYTES, result.bytes if isinstance(result, GrammarCost) else 0)
            self._compilations.add("", tag)
            self._compilations.start()
            return

    def _drop_compiled(self) -> None:
        log.info("dropping all %d compiled grammars to free memory", len(self._compiled))
        self._compiler.clear()
        self._compiled.clear()
        self._compiled_bytes = 0

    # --- the other thread

    def _check(self, check: GrammarCheck) -> GrammarCost | GrammarRefused:
        return check.proceed(self._checker, self.bounds)


class GrammarCheck:
    """The check of one grammar as a whole, and, if that is refused, of each of its expressions alone.

    These are separate steps, between which the grammars of other clients have their turns.
    """

    def __init__(self, tag: str, client: str = "", most_s: float = 0.0) -> None:
        """Creates a check that has not begun.

        Args:
            tag: The grammar.
            client: The client that wants it.
            most_s: The seconds of checking after which no further expression is checked alone.
        """
        self.tag, self.client = tag, client
        self._left_s = most_s
        self._refusal: GrammarRefused | None = None
        self._reasons: dict[str, str] = {}  # those of the refusal
        self._expressions: deque[tuple[int, str]] = deque()

    @property
    def unfinished(self) -> bool:
        """Whether `proceed` should be called again, as expressions are left, and time to check them."""
        return bool(self._expressions) and self._left_s > 0

    def proceed(self, checker: GrammarChecker, bounds: GrammarBounds) -> GrammarCost | GrammarRefused:
        """Checks the whole, or else the next expression alone.

        Args:
            checker: The checker.
            bounds: The limits of a grammar.

        Returns:
            The cost of the grammar, or the error with which it is refused. The error has the reasons for those of its
            expressions that were refused alone, too, or that were not checked alone yet.

        Raises:
            RequestError: The grammar could not be checked.
        """
        if self._refusal is None:
            try:
                return checker.check(self.tag, bounds)
            except GrammarRefused as error:
                self._refusal = error
                self._expressions.extend(_alone(self.tag))
                error.reasons = self._reasons = {str(number): error.message for number, _ in self._expressions}
            return self._refusal
        number, tag = self._expressions.popleft()
        began = time.monotonic()
        try:
            checker.check(tag, bounds)
            del self._reasons[str(number)]
        except GrammarRefused as error:
            self._reasons[str(number)] = error.message
        self._left_s -= time.monotonic() - began
        return self._refusal


def _alone(tag: str) -> list[tuple[int, str]]:
    """Returns a grammar for each of several expressions in a grammar, with the number of the expression."""
    try:
        parts = limits.expressions(json.loads(tag))
    except ValueError:
        return []
    if len(parts) < 2:
        return []
    return [(number, f'{{"type":"structural_tag","format":{part}}}') for number, part in enumerate(parts)]


class _CheckResults:
    """The results of checks, cost or error, by grammar. The least recently used ones are dropped first."""

    def __init__(self) -> None:
        self._results: OrderedDict[str, GrammarCost | RequestError] = OrderedDict()
        self._bytes = 0

    def get(self, tag: str) -> GrammarCost | RequestError | None:
        result = self._results.get(tag)
        if result is not None:
            self._results.move_to_end(tag)
        return result

    def add(self, tag: str, result: GrammarCost | RequestError) -> None:
        """Keeps a result, unless it is a failure that says nothing about the grammar."""
        if isinstance(result, EngineFailure | Unavailable):
            return
        if tag not in self._results:
            self._bytes += len(tag)
        self._results[tag] = result
        while len(self._results) > RESULTS or self._bytes > RESULT_BYTES:
            self._bytes -= len(self._results.popitem(last=False)[0])
