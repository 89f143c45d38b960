"""Compiles and matches grammars with XGrammar's library (core.py).

Neither its compiler nor its masks have a time limit. So a grammar is compiled and tested in a process that can be
killed (process.py), and read here from that process's answer. It is matched in a thread for which a step waits only for
a while (bounded.py). If the calls for a text have taken too long, its request ends with an error, and its grammar is
refused from then on.
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

from ....engine.paged.parts import one_by_one
from ....engine.paged.sequence import Matcher, NoToken
from ....errors import BadRequest, GrammarTooComplex, Unavailable
from ...structured_output.child.checker import ProcessGrammarChecker
from ...structured_output.child.vocabulary import MAX_FORCED_BYTES, TOO_COMPLEX, GrammarTokens, Needed, forbid, padded
from ...structured_output.limits import GrammarBounds, GrammarCost
from . import core
from .bounded import CallThread

log = logging.getLogger(__name__)

FREE_S, MOST_S = 0.02, 0.5
"""A call that takes at most the first number of CPU seconds is not counted; the counted calls of one text may take the
second number together. Without this limit a grammar that passed its tests could block all steps: after some texts a
mask of `s ::= s s | [a-z]` takes 28 s, and accepting a token of 64 letters 6 s."""
MOST_LEFT = 4
"""The number of abandoned threads that are still computing from which new grammars are refused."""
GUESS_S = 0.005
"""The CPU seconds of looking ahead, to the end of the text, after which a text gets no more forced tokens."""


@dataclass(slots=True)
class _Compiled:
    """A compiled grammar that requests can use."""

    grammar: Any
    """The library's object for the grammar."""
    needed: Needed
    """The special tokens that the grammar may produce."""
    slow: bool = False
    """Whether its masks have taken too long."""


class XGrammar:
    """A `structured_output.child.library.Library` for one vocabulary. It is thread-safe.

    The vocabulary is read when the first grammar arrives (0.2 s for 150,000 tokens). Grammars dropped by `clear` are
    kept until the next `clear`, since a request may be about to start with one.
    """

    def __init__(
        self,
        pieces: Sequence[bytes],
        width: int,
        eos: Sequence[int],
        checker: Callable[[Sequence[bytes]], ProcessGrammarChecker],
        *,
        special: Collection[int] = (),
    ) -> None:
        """Loads the library.

        Args:
            pieces: The bytes of each token.
            width: The number of logits per token.
            eos: The stop tokens of the model.
            checker: Creates the client of process.py, for the pieces of a vocabulary.
            special: The special tokens, which an answer does not show.

        Raises:
            NotUsable: The library cannot be loaded.
        """
        self._core = core.load()
        self._eos = sorted(eos)
        self._tokens = GrammarTokens(padded(pieces, width), self._eos, special)
        self._checker = checker(self._tokens.tokens)
        self._thread = CallThread("grammar-masks")
        self._lock = threading.Lock()
        self._asking = threading.Lock()
        self._vocabulary: Any = None
        self._bounds = GrammarBounds()
        self._compiled: dict[str, _Compiled] = {}
        self._dropped: dict[str, _Compiled] = {}

    def compile(self, tag: str) -> None:
        """Compiles a grammar, so that requests can use it. Raises GrammarRefused."""
        if self._known(tag) is None:
            self.check(tag, self._bounds)

    def clear(self) -> None:
        """Drops the compiled grammars. Those that a request may be about to use are kept until the next call."""
        with self._lock:
            self._dropped, self._compiled = self._compiled, {}

    def check(self, tag: str, bounds: GrammarBounds) -> GrammarCost:
        """Compiles a grammar within bounds, so that `matcher` can use it, and returns what matching it costs."""
        if self._thread.left >= MOST_LEFT:
            raise Unavailable("Structured output is not available at the moment.", code="grammar_unavailable")
        self._bounds = bounds
        with self._asking:
            answer = self._checker.ask(tag, bounds)
        text = answer["compiled"]
        with self._lock:
            if self._vocabulary is None:
                self._vocabulary = self._core.vocabulary(self._tokens.tokens, self._eos)
        compiled = _Compiled(self._core.compiled(text, self._vocabulary), self._tokens.special.needed(json.loads(tag)))
        with self._lock:  # held briefly, because the step loop waits for it
            self._compiled.setdefault(tag, compiled)
        return GrammarCost(answer["seconds"], len(text), answer["mask_s"], tuple(answer["notices"]))

    def stop(self) -> None:
        """Stops the process that compiles grammars."""
        with self._asking:
            self._checker.stop()

    def prepare(self, matchers: Sequence[Matcher]) -> None:
        """Computes the token masks of these matchers, one after the other."""
        one_by_one(matchers)

    def matcher(self, tag: str, stops: frozenset[int]) -> XGrammarMatcher:
        """Returns a matcher in the initial state of a compiled grammar.

        Raises GrammarTooComplex if the grammar's masks took too long before, and BadRequest if the grammar has been
        dropped.
        """
        compiled = self._known(tag)
        if compiled is None:
            raise BadRequest("The grammar was dropped to make room for newer ones; please try again")
        if compiled.slow:
            raise GrammarTooComplex(TOO_COMPLEX)
        state = self._core.matcher(compiled.grammar)
        return XGrammarMatcher(state, compiled, stops | frozenset(self._eos), self._tokens, self._thread)

    def _known(self, tag: str) -> _Compiled | None:
        with self._lock:
            one = self._compiled.get(tag) or self._dropped.pop(tag, None)
            if one is not None:
                self._compiled[tag] = one
            return one


class XGrammarMatcher:
    """The state of a sequence in its grammar, kept by XGrammar: a `paged.sequence.Matcher`."""

    def __init__(
        self, state: Any, compiled: _Compiled, stops: frozenset[int], tokens: GrammarTokens, thread: CallThread
    ) -> None:
        """Begins with a matcher of the library.

        Args:
            state: The library's matcher.
            compiled: The grammar.
            stops: The tokens that may end the text where the grammar allows it.
            tokens: The vocabulary.
            thread: The thread in which the library is called.
        """
        self._thread = thread
        self._state = state
        self._compiled = compiled
        self._stops = stops
        self._tokens = tokens
        self._mask = np.zeros((1, -(-len(tokens.tokens) // 32)), np.int32)
        self._ready = self._failed = self._ends = False
        self._guesses, self._ahead = True, b""
        self._pending: list[int] = []  # tokens that the library has not received yet
        self._slow_s = 0.0  # CPU time in excess of FREE_S

    def prepare(self) -> None:
        """Computes the token mask early, while the network computes."""
        self._failed = self._failed or self._compiled.slow
        if not self._ready and not self._failed:
            self._run(self._compute)

    def _compute(self) -> None:
        """Computes the mask of the next token. It runs in the thread in which the library is called."""
        self._advance()
        core.fill(self._state, self._mask)
        self._ends = bool(self._state.is_completed())
        self._ready = True

    def _look_ahead(self) -> None:
        """Finds the text that must come next. It runs in the thread in which the library is called."""
        self._advance()
        began = time.thread_time()
        self._ahead = core.forced(self._state)[:MAX_FORCED_BYTES]
        self._guesses = time.thread_time() - began < GUESS_S

    def _run(self, call: Callable[[], None]) -> None:
        """Makes a call in the thread within the time that the text has left; if that fails, the matcher fails."""

        def timed() -> None:
            began = time.thread_time()
            call()
            self._slow_s += max(0.0, time.thread_time() - began - FREE_S)

        try:
            self._thread.run(timed, FREE_S + MOST_S - self._slow_s)
            if self._slow_s > MOST_S:
                raise TimeoutError("its masks took too long together")
        except Exception as error:  # any error of the library ends only this text
            self._failed = True
            self._compiled.slow = self._compiled.slow or isinstance(error, TimeoutError)
            log.warning("a grammar can no longer be matched: %s", error)

    def apply(self, row: NDArray[np.float32]) -> None:
        """Forbids the tokens that the grammar does not allow next, in a logits row [vocab]. Raises sequence.NoToken."""
        self.prepare()
        if self._failed:
            raise NoToken(TOO_COMPLEX)
        mask = self._mask[0].view(np.uint32)
        also = self._tokens.special.forbidden(mask, self._compiled.needed)
        forbid(row, mask, self._stops if self._ends else (), also)

    def consume(self, token: int) -> bool:
        """Processes the next token. Returns True if the grammar is complete; a stop token ends the text."""
        if token in self._stops:
            return True
        self._ready = False
        self._pending.append(token)
        return False

    def forced(self) -> list[int]:
        """Returns tokens of the text that must come next, as far as the grammar leaves no choice."""
        if not self._guesses or self._failed or self._compiled.slow:
            return []
        self._run(self._look_ahead)
        try:
            return self._tokens(self._ahead) if self._ahead and not self._failed else []
        except ValueError:
            return []

    def fork(self) -> XGrammarMatcher:
        """Returns a copy of the state for another sequence that continues from here."""
        state = self._state if self._failed else self._state.fork()  # a failed state may still be in use
        other = XGrammarMatcher(state, self._compiled, self._stops, self._tokens, self._thread)
        other._pending, other._failed, other._guesses = self._pending[:], self._failed, self._guesses
        other._slow_s = self._slow_s
        return other

    def _advance(self) -> None:
        """Passes the pending tokens to the library. Raises ValueError if one is not allowed."""
        pending, self._pending = self._pending, []
        for token in pending:
            if not core.accept(self._state, token):
                raise ValueError("a token that it does not allow")
