"""Grammars compiled and matched by XGrammar's library (xgrammar_core).

Neither its compilation nor its masks have a limit. So a grammar is compiled and tried in a process that can be killed
(xgrammar_process) and read here from what that process answers, and masks are computed in threads for which a step
waits for a while only (bounded_calls): one that takes longer is an error of its request, and its grammar is refused
from then on.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ....errors import BadRequest, GrammarTooComplex, Unavailable
from ....util.resources import allowed_cores
from ...generation.grammar_checker import ProcessGrammarChecker
from ...generation.grammar_limits import GrammarBounds
from ...generation.pipeline import GrammarCost
from ..sampling.logits_processors import NoToken
from . import xgrammar_core
from .bounded_calls import LIMIT_S, CallThread
from .matcher import MAX_FORCED_BYTES, TOO_COMPLEX, GrammarTokens, Matcher, forbid, padded
from .special_tokens import Needed

log = logging.getLogger(__name__)

PARALLEL, MASK_THREADS = 4, 8
"""Masks of a step from which on several threads share them, and how many threads."""
MOST_LEFT = 4
"""Threads left behind that still compute, from which on no new grammar is taken."""
FREE_S, MOST_S = 0.02, 0.5
"""CPU time of a mask that counts as none, and of all others of a text together. `s ::= s s | "a"` needs more with every
token, 0.2 s after 200 of them: each of them held the steps of all others."""
GUESS_S = 0.005
"""CPU time of looking ahead, after which a text is no longer guessed: XGrammar follows it to its end."""


@dataclass(slots=True)
class _Compiled:
    """grammar: the library's. needed: of special tokens. slow: a mask took too long."""

    grammar: Any
    needed: Needed
    slow: bool = False


class XGrammar:
    """pipeline.Compiler and pipeline.GrammarChecker.

    Thread-safe. The vocabulary is read when the first grammar comes (0.2 s for 150,000 tokens). What is dropped by
    `clear` is kept until the next time: a request may have been about to begin with it.
    """

    def __init__(
        self,
        pieces: Sequence[bytes],
        width: int,
        eos: Sequence[int],
        checker: Callable[[Sequence[bytes]], ProcessGrammarChecker],
        limit_s: float = LIMIT_S,
        *,
        special: Collection[int] = (),
    ) -> None:
        """Loads the library.

        Args:
            pieces: The bytes of each token.
            width: Of the logits.
            eos: Tokens that end a text.
            checker: Makes xgrammar_process for the pieces that the library is to know.
            limit_s: CPU time of a mask.
            special: Tokens that an answer does not show.

        Raises:
            NotUsable: The library cannot be loaded.
        """
        self._core = xgrammar_core.load()
        self._eos = sorted(eos)
        self._tokens = GrammarTokens(padded(pieces, width), self._eos, special)
        self._checker = checker(self._tokens.tokens)
        self._threads = MaskThreads(limit_s)
        self._lock = threading.Lock()
        self._asking = threading.Lock()
        self._vocabulary: Any = None
        self._bounds = GrammarBounds()
        self._compiled: dict[str, _Compiled] = {}
        self._dropped: dict[str, _Compiled] = {}

    def compile(self, tag: str) -> None:
        """Makes a grammar ready for `matcher`. Raises RequestError."""
        if self._known(tag) is None:
            self.check(tag, self._bounds)

    def clear(self) -> None:
        with self._lock:
            self._dropped, self._compiled = self._compiled, {}

    def check(self, tag: str, bounds: GrammarBounds) -> GrammarCost:
        """Implements pipeline.GrammarChecker.check; makes the grammar ready for `matcher` as well."""
        if self._threads.left >= MOST_LEFT:
            raise Unavailable("Structured output is not available at the moment.", code="grammar_unavailable")
        self._bounds = bounds
        with self._asking:
            answer = self._checker.ask(tag, bounds)
        text = answer["compiled"]
        with self._lock:
            if self._vocabulary is None:
                self._vocabulary = self._core.vocabulary(self._tokens.tokens, self._eos)
        compiled = _Compiled(self._core.compiled(text, self._vocabulary), self._tokens.special.needed(json.loads(tag)))
        with self._lock:  # the step loop waits for it
            self._compiled.setdefault(tag, compiled)
        return GrammarCost(answer["seconds"], len(text), 0.0, answer["mask_s"], tuple(answer["notices"]))

    def stop(self) -> None:
        with self._asking:
            self._checker.stop()

    def matcher(self, tag: str, stops: frozenset[int]) -> XGrammarMatcher:
        """Returns a matcher at a grammar's beginning. stops: tokens that may end the text where the grammar can end.

        Raises GrammarTooComplex for one with which a mask took too long before, BadRequest for one that is dropped.
        """
        compiled = self._known(tag)
        if compiled is None:
            raise BadRequest("The grammar was dropped for others that came after it; please try again")
        if compiled.slow:
            raise GrammarTooComplex(TOO_COMPLEX)
        state = self._core.matcher(compiled.grammar)
        return XGrammarMatcher(state, compiled, stops | frozenset(self._eos), self._tokens, self._threads)

    def _known(self, tag: str) -> _Compiled | None:
        with self._lock:
            one = self._compiled.get(tag) or self._dropped.pop(tag, None)
            if one is not None:
                self._compiled[tag] = one
            return one


class MaskThreads:
    """The threads that compute with the library."""

    def __init__(self, limit_s: float) -> None:
        self._threads = [CallThread(f"grammar-mask-{place}", limit_s) for place in range(MASK_THREADS)]

    @property
    def left(self) -> int:
        """Threads that were left behind and still compute."""
        return sum(thread.left for thread in self._threads)

    def run(self, matchers: Sequence[XGrammarMatcher], what: Callable[[XGrammarMatcher], None]) -> None:
        """Calls `what` with each matcher, several at a time where that pays; one whose call takes too long fails."""
        count = min(MASK_THREADS, allowed_cores()) if len(matchers) >= PARALLEL else 1
        parts = [(thread, matchers[place::count]) for place, thread in enumerate(self._threads[:count])]
        begun = [(t, part, t.start([_call(what, one) for one in part])) for t, part in parts]
        for thread, part, calls in begun:
            for one, error in zip(part, thread.finish(calls), strict=True):
                if error is not None:
                    one.fail(error)


def _call(what: Callable[[XGrammarMatcher], None], one: XGrammarMatcher) -> Callable[[], None]:
    return lambda: what(one)


def prepare(matchers: Sequence[Matcher]) -> None:
    """Computes the masks of a step like `prepare` of each matcher."""
    ready = [one for one in matchers if isinstance(one, XGrammarMatcher) and one.needs_mask]
    if ready:
        ready[0].threads.run(ready, XGrammarMatcher.compute)


class XGrammarMatcher:
    """A grammar.Matcher. The threads call `compute` and `look_ahead`, their user all else."""

    def __init__(
        self, state: Any, compiled: _Compiled, stops: frozenset[int], tokens: GrammarTokens, threads: MaskThreads
    ) -> None:
        self.threads = threads
        self._state = state
        self._compiled = compiled
        self._stops = stops
        self._tokens = tokens
        self._pending: list[int] = []  # tokens that the library does not have yet
        self._mask = np.zeros((1, -(-len(tokens.tokens) // 32)), np.int32)
        self._ready = self._failed = self._ends = False
        self._guesses, self._ahead = True, b""
        self._slow_s = 0.0  # CPU time beyond FREE_S

    @property
    def needs_mask(self) -> bool:
        """Whether the mask is not computed yet, and the matcher has not failed."""
        self._failed = self._failed or self._compiled.slow
        return not self._ready and not self._failed

    def compute(self) -> None:
        """Computes the mask of the next token. Raises TimeoutError, and ValueError for a token that is not allowed."""
        began = time.thread_time()
        self._advance()
        xgrammar_core.fill(self._state, self._mask)
        self._ends = bool(self._state.is_completed())
        self._slow_s += max(0.0, time.thread_time() - began - FREE_S)
        if self._slow_s > MOST_S:
            raise TimeoutError("its masks take too long together")
        self._ready = True

    def look_ahead(self) -> None:
        """Finds the text that has to come next."""
        self._advance()
        began = time.thread_time()
        self._ahead = xgrammar_core.forced(self._state)[:MAX_FORCED_BYTES]
        self._guesses = time.thread_time() - began < GUESS_S

    def fail(self, error: Exception) -> None:
        """Makes `apply` raise from now on."""
        self._failed = True
        if isinstance(error, TimeoutError):
            self._compiled.slow = True
        log.warning("a grammar cannot be matched any more: %s", error)

    def prepare(self) -> None:
        prepare([self])

    def apply(self, row: NDArray[np.float32]) -> None:
        self.prepare()
        if self._failed:
            raise NoToken(TOO_COMPLEX)
        mask = self._mask[0].view(np.uint32)
        also = self._tokens.special.forbidden(mask, self._compiled.needed)
        forbid(row, mask, self._stops if self._ends else (), also)

    def consume(self, token: int) -> bool:
        """Takes the next token; True for an end token, which ends the grammar (and the text, by its stops)."""
        if token in self._stops:
            return True
        self._ready = False
        self._pending.append(token)
        return False

    def forced(self) -> list[int]:
        if not self._guesses or self._failed or self._compiled.slow:
            return []
        self.threads.run([self], XGrammarMatcher.look_ahead)
        try:
            return self._tokens(self._ahead) if self._ahead and not self._failed else []
        except ValueError:
            return []

    def fork(self) -> XGrammarMatcher:
        state = self._state if self._failed else self._state.fork()  # a failed one may be at work still
        other = XGrammarMatcher(state, self._compiled, self._stops, self._tokens, self.threads)
        other._pending, other._failed, other._guesses = self._pending[:], self._failed, self._guesses
        other._slow_s = self._slow_s
        return other

    def _advance(self) -> None:
        pending, self._pending = self._pending, []
        for token in pending:
            if not xgrammar_core.accept(self._state, token):
                raise ValueError("a token that the grammar does not allow")
