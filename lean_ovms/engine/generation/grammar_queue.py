"""Where requests with a grammar wait until it is known good and compiled. Knows no openvino and no sockets.

A new grammar is looked at from its text (grammar_limits), compiled in a process that can be killed (grammar_check) and
then compiled here, off the step loop, before its request may run; both compilations happen in threads and the loop
goes on. Verdicts are remembered. Everything else here belongs to the loop's thread and never blocks.

One rule keeps GenAI's unguarded lists whole: while a thread compiles, no request with a grammar has its first step.
So a compilation starts only when no such request is on its way (`calm`), and none is let go while it lasts.
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from typing import NamedTuple

from ...errors import BadRequest, EngineFailure, RequestError, TooManyRequests, Unavailable, from_wire
from ..errors import last_line
from ..protocol import Submit
from . import grammar_limits
from .pipeline import Grammars, Helper
from .sequence import Request

log = logging.getLogger(__name__)

Cost = tuple[float, int]
"""Seconds and bytes that compiling took."""
LEAST_BYTES = 256 << 10
"""Counted for every compiled grammar, however little it seems to take (an ordinary schema at 131k tokens)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """texts: most grammars waiting to be compiled; more are a 429. verdicts, verdict_bytes: remembered.

    compiled_bytes: of compiled grammars, then all are dropped. idle_s: without a new grammar, the helper is stopped.
    """

    bounds: grammar_limits.Bounds = field(default_factory=grammar_limits.Bounds)
    texts: int = 32
    verdicts: int = 512
    verdict_bytes: int = 8 << 20
    compiled_bytes: int = 256 << 20
    idle_s: float = 120.0


class Waiting(NamedTuple):
    """A request that waits for its grammar."""

    submit: Submit
    request: Request


class Outcome(NamedTuple):
    """A request that waits no more. error: None when it may run."""

    submit: Submit
    request: Request
    error: RequestError | None


class GrammarQueue:
    """Lets requests with a grammar through when that is safe."""

    def __init__(self, grammars: Grammars, wake: Callable[[], None], limits: Limits) -> None:
        """wake: makes the loop turn soon; called from threads."""
        self._compiler, helper = grammars
        self._limits = limits
        self._parked: dict[str, list[Waiting]] = {}
        self._done: SimpleQueue[tuple[str, str, Cost | RequestError | None]] = SimpleQueue()
        self._verdicts = _Verdicts(limits)
        self._warm: set[str] = set()
        self._warm_bytes = 0
        self._cold: deque[str] = deque()  # known good, not compiled here
        self._warming = ""
        self._checks = _Thread("grammar-check", self._checked(helper, wake), limits.idle_s, helper.stop)
        self._warmings = _Thread("grammar-warm", self._warmed(wake), limits.idle_s, None)

    @property
    def waiting(self) -> int:
        """Requests that wait here."""
        return sum(map(len, self._parked.values())) if self._parked else 0

    @property
    def compiling(self) -> bool:
        """A thread compiles: no request with a grammar may have its first step, not even one that comes back."""
        return bool(self._warming)

    def __contains__(self, request_id: int) -> bool:
        return any(p.submit.id == request_id for parked in self._parked.values() for p in parked)

    def enter(self, submit: Submit, request: Request) -> bool:
        """True: it may run now. False: it waits here and `turn` will tell. Raises RequestError: it will not run."""
        tag = submit.constraint
        verdict = self._verdicts.get(tag)
        if isinstance(verdict, RequestError):
            raise from_wire(verdict.to_wire())  # a fresh one: an exception keeps the trace of every time it is raised
        if tag in self._warm and not self._warming:
            return True
        if tag not in self._parked:
            self._begin(tag, verdict)
        self._parked.setdefault(tag, []).append(Waiting(submit, request))
        return False

    def leave(self, request_id: int, index: int | None) -> None:
        """The client cancelled a request, or one answer of it. Ids that do not wait here are ignored."""
        for parked in self._parked.values():
            for item in parked:
                if item.submit.id == request_id:
                    request = item.request
                    request.wanted -= set(request.wanted) if index is None else {index}
                    request.sequences = [s for s in request.sequences if s.index in request.wanted]
            parked[:] = [item for item in parked if item.request.wanted]

    def turn(self, calm: bool) -> list[Outcome]:
        """Requests whose grammar is decided. calm: no request with a grammar waits for its first step."""
        if not self._parked and not self._warming:
            return []
        decided: list[Outcome] = []
        while not self._done.empty():
            step, tag, outcome = self._done.get()
            if step == "warmed":
                self._warming = ""
            if isinstance(outcome, RequestError):
                decided += self._decide(tag, outcome)
            elif step == "warmed":
                self._warm.add(tag)
            else:
                self._cold.append(tag)
        if not self._warming:
            for tag in [tag for tag in self._parked if tag in self._warm]:
                decided += self._decide(tag, None)
            if calm and not decided:
                self._warm_next()
        return decided

    # --- the loop's side

    def _begin(self, tag: str, verdict: Cost | None) -> None:
        if verdict is not None:
            if tag not in self._warm:
                self._cold.append(tag)
            return
        grammar_limits.check(tag, self._limits.bounds)
        if len(self._parked) >= self._limits.texts:
            raise TooManyRequests("too many new grammars are waiting to be compiled; please try again later")
        self._checks.put(tag)

    def _decide(self, tag: str, error: RequestError | None) -> list[Outcome]:
        return [Outcome(p.submit, p.request, error) for p in self._parked.pop(tag, [])]

    def _warm_next(self) -> None:
        while self._cold:
            tag = self._cold.popleft()
            if not self._parked.get(tag):
                self._parked.pop(tag, None)  # everybody has left
                continue
            if self._warm_bytes > self._limits.compiled_bytes:
                self._forget()
            verdict = self._verdicts.get(tag)
            self._warm_bytes += max(LEAST_BYTES, verdict[1] if isinstance(verdict, tuple) else 0)
            self._warming = tag
            self._warmings.put(tag)
            return

    def _forget(self) -> None:
        log.info("dropping %d compiled grammars", len(self._warm))
        self._compiler.forget()
        self._warm.clear()
        self._warm_bytes = 0

    # --- the threads' side

    def _checked(self, helper: Helper, wake: Callable[[], None]) -> Callable[[str], None]:
        def check(tag: str) -> None:
            outcome: Cost | RequestError
            try:
                outcome = helper.check(tag)
            except RequestError as error:
                outcome = error
            except Exception as error:  # the thread's border: whoever waits must hear of it
                log.exception("checking a grammar failed")
                outcome = EngineFailure(f"the grammar could not be checked: {last_line(error)}")
            self._verdicts.put(tag, outcome)
            self._done.put(("checked", tag, outcome))
            wake()

        return check

    def _warmed(self, wake: Callable[[], None]) -> Callable[[str], None]:
        def warm(tag: str) -> None:
            outcome: RequestError | None = None
            try:
                self._compiler.compile(tag)
            except BadRequest as error:
                outcome = error
            except Exception as error:  # the thread's border, as above
                log.exception("compiling a grammar failed")
                outcome = EngineFailure(f"the grammar could not be compiled: {last_line(error)}")
            self._done.put(("warmed", tag, outcome))
            wake()

        return warm


class _Verdicts:
    """What is known of grammars, the least recently used forgotten first. Both threads and the loop use it."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._lock = threading.Lock()
        self._known: OrderedDict[str, Cost | RequestError] = OrderedDict()
        self._bytes = 0

    def get(self, tag: str) -> Cost | RequestError | None:
        with self._lock:
            verdict = self._known.get(tag)
            if verdict is not None:
                self._known.move_to_end(tag)
            return verdict

    def put(self, tag: str, verdict: Cost | RequestError) -> None:
        """Failures that say nothing about the grammar are not kept."""
        if isinstance(verdict, EngineFailure | Unavailable):
            return
        with self._lock:
            if tag not in self._known:
                self._bytes += len(tag)
            self._known[tag] = verdict
            while len(self._known) > self._limits.verdicts or self._bytes > self._limits.verdict_bytes:
                self._bytes -= len(self._known.popitem(last=False)[0])


class _Thread:
    """Works on what is put, one after the other; sleeps otherwise. Started when first needed."""

    def __init__(
        self, name: str, work: Callable[[str], None], idle_s: float, idle: Callable[[], object] | None
    ) -> None:
        """idle: called after idle_s seconds without work."""
        self._name, self._work, self._idle_s, self._idle = name, work, idle_s, idle
        self._items: SimpleQueue[str] = SimpleQueue()
        self._thread: threading.Thread | None = None

    def put(self, item: str) -> None:
        self._items.put(item)
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            self._thread.start()

    def _run(self) -> None:
        timeout_s: float | None = self._idle_s
        while True:
            try:
                item = self._items.get(timeout=timeout_s)
            except Empty:
                if self._idle is not None:
                    self._idle()
                timeout_s = None
                continue
            timeout_s = self._idle_s
            self._work(item)
