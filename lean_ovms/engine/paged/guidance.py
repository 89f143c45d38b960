"""Grammars compiled and matched by llguidance, which only this module imports."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Sequence
from typing import Any

import llguidance
import numpy as np
from numpy.typing import NDArray

from ...errors import GrammarInvalid, GrammarTooComplex
from ..generation import grammar_limits
from ..generation.grammar_checker import ProcessGrammarChecker
from ..generation.grammar_limits import Bounds
from ..generation.pipeline import GrammarCost
from . import regular, structural_tag
from .grammar import MAX_FORCED_BYTES, TOO_COMPLEX, Matcher, forbid
from .logits import NoToken
from .longest_tokens import Tokens
from .wide import cores

log = logging.getLogger(__name__)

TEXT_BYTES = 32 << 20
"""Of long grammars that are remembered as llguidance reads them."""
LIMITS = llguidance.LLParserLimits(step_lexer_fuel=120_000, max_lexer_states=100_000, verbose_errors=False)
"""With half so much fuel no mask of some 60 hostile grammars took more than 8 ms, with 2,000 and with 150,000 tokens;
of ordinary ones none took more than 3 ms. The beginning of a tool call needs 70,000, with what looking ahead for text
without a choice takes. What needs more is an error of its request alone."""
TRIAL_TEXTS, TRIAL_TOKENS, TRIAL_S, MASK_S = 3, 24, 0.25, 0.05
"""A new grammar is tried with random texts, before it may be matched in a step: no mask may take longer than MASK_S
there, all together TRIAL_S."""
INLINE_BYTES = 4096
"""Of a grammar that is read in a thread here; longer ones, up to a second of Python, in a process of their own."""
PARALLEL, MASK_THREADS = 4, 8
"""Masks of a step from which on several threads share them, and how many threads."""
COST_BYTES = 256 << 10
_executor: Any = None  # of masks that several threads share


class Guidance:
    """pipeline.Compiler and pipeline.GrammarChecker: compiling takes milliseconds here and needs no process of its own.

    Thread-safe. The vocabulary is read when the first grammar comes (0.8 s for 150,000 tokens).
    """

    def __init__(
        self,
        pieces: Sequence[bytes],
        width: int,
        eos: Sequence[int],
        reader: ProcessGrammarChecker | None = None,
    ) -> None:
        """pieces: bytes of each token. width: of the logits.

        reader: of long grammars (grammar_process); None reads them here.
        """
        self._reader = reader
        self._texts: dict[str, str] = {}  # llguidance's, of long grammars
        self._text_bytes = 0
        self._pieces = [*pieces, *[b""] * (width - len(pieces))][:width]
        self._eos = sorted(eos)
        self._tokenizer: Any = None
        self._lock = threading.Lock()
        self._compiled: dict[str, Any] = {}
        self._tokens = Tokens(self._pieces, self._eos)

    def compile(self, tag: str) -> None:
        """Make it ready for `matcher`. Raises GrammarInvalid and GrammarTooComplex."""
        if tag not in self._compiled:
            self._compiled[tag] = self._built(tag)

    def clear(self) -> None:
        with self._lock:
            self._compiled.clear()
            self._texts.clear()
            self._text_bytes = 0

    def check(self, tag: str, bounds: Bounds) -> GrammarCost:
        """pipeline.GrammarChecker.check."""
        start = time.perf_counter()
        if len(tag) <= INLINE_BYTES or self._reader is None:
            grammar_limits.check(tag, bounds)
        else:
            self._keep(tag, str(self._reader.ask(tag, bounds)["text"]))
        mask_s = self._try(self._built(tag))
        return GrammarCost(time.perf_counter() - start, COST_BYTES, 0.0, mask_s)

    def stop(self) -> None:
        """pipeline.GrammarChecker.stop."""
        if self._reader is not None:
            self._reader.stop()

    def matcher(self, tag: str, stops: frozenset[int]) -> GuidanceMatcher:
        """A grammar at its beginning. stops: tokens that may end the text where the grammar can end."""
        self.compile(tag)
        return GuidanceMatcher(self._compiled[tag].deep_copy(), stops | frozenset(self._eos), self._tokens)

    def _built(self, tag: str) -> Any:
        grammar = self._texts.get(tag) or regular.lark(structural_tag.parse(tag))
        with self._lock:
            if self._tokenizer is None:
                wrapper = llguidance.TokenizerWrapper(self._tokens)
                self._tokenizer = llguidance.LLTokenizer(wrapper, len(self._pieces), self._eos)
        built = llguidance.LLMatcher(self._tokenizer, grammar, log_level=0, limits=LIMITS)
        _raise_for(built)
        return built

    def _keep(self, tag: str, text: str) -> None:
        """Remember the text of a long grammar, as far as there is room."""
        with self._lock:
            if self._text_bytes > TEXT_BYTES:
                self._texts.clear()
                self._text_bytes = 0
            self._texts[tag] = text
            self._text_bytes += len(tag) + len(text)

    def _try(self, built: Any) -> float:
        """Walk through the grammar at random for a while: CPU time of the slowest mask. Raises GrammarTooComplex."""
        end = time.monotonic() + TRIAL_S
        return max(self._walk(built.deep_copy(), random.Random(seed), end) for seed in range(TRIAL_TEXTS))

    def _walk(self, state: Any, rng: random.Random, end: float) -> float:
        slowest = 0.0
        for _ in range(TRIAL_TOKENS):
            if state.is_stopped() or time.monotonic() > end:
                break
            start = time.thread_time()
            mask = state.compute_bitmask()
            slowest = max(slowest, time.thread_time() - start)
            if slowest > MASK_S:
                raise GrammarTooComplex(f"The grammar is too complex: a token takes more than {1000 * MASK_S:.0f} ms")
            bits = np.unpackbits(np.frombuffer(mask, np.uint8), bitorder="little")
            _raise_for(state)
            bits[self._eos] = 0
            allowed = np.flatnonzero(bits[: len(self._pieces)])
            if not len(allowed):
                break
            state.consume_token(int(rng.choice(allowed)))
        return slowest


def prepare(matchers: Sequence[Matcher]) -> None:
    """Compute the masks of a step, several at a time where that pays; as `prepare` of each does."""
    ready = [one for one in matchers if isinstance(one, GuidanceMatcher) and one.needs_mask]
    if len(ready) < PARALLEL or cores() == 1:
        for one in ready:
            one.prepare()
        return
    global _executor
    if _executor is None:
        _executor = llguidance.LLExecutor(min(MASK_THREADS, cores()))
    masks = np.zeros((len(ready), len(ready[0].mask)), np.uint32)
    states = [(one.state, place) for place, one in enumerate(ready)]
    _executor.unsafe_compute_mask_ptr(states, masks.ctypes.data, masks.strides[0], len(masks))
    for one, mask in zip(ready, masks, strict=True):
        one.set_mask(mask)


def _raise_for(state: Any) -> None:
    if not state.is_error():
        return
    text = str(state.get_error()).splitlines()[0][:300]
    if any(word in text for word in ("too many", "too complex", "too deep", "fuel", "limit", "too big", "too large")):
        raise GrammarTooComplex(f"The grammar is too complex: {text}")
    raise GrammarInvalid(text)


class GuidanceMatcher:
    """grammar.Matcher. The state of a text in its grammar, and the mask of what may come next."""

    __slots__ = ("_ready", "_stops", "_tokens", "mask", "state")

    def __init__(self, state: Any, stops: frozenset[int], tokens: Tokens) -> None:
        self.state = state
        self._stops = stops
        self._tokens = tokens
        self.mask = np.zeros(-(-len(tokens.tokens) // 32), np.uint32)
        self._ready = False

    @property
    def needs_mask(self) -> bool:
        """It is not computed yet, and the text is not over."""
        return not self._ready and not self.state.is_stopped()

    def set_mask(self, mask: NDArray[np.uint32]) -> None:
        """The mask of the next token, computed outside."""
        self.mask = mask
        self._ready = True

    def prepare(self) -> None:
        if self.needs_mask:
            self.state.unsafe_compute_mask_ptr(self.mask.ctypes.data, self.mask.nbytes)
            self._ready = True

    def apply(self, line: NDArray[np.float32]) -> None:
        self.prepare()
        if self.state.is_error():
            raise NoToken(TOO_COMPLEX)
        ends = self._stops if self.state.is_accepting() else ()
        forbid(line, self.mask if self._ready else None, ends)

    def consume(self, token: int) -> bool:
        """True when the grammar is over: an end token ends it (and the text, by its stops) where it may end."""
        self._ready = False
        if token in self._stops:
            return True
        self.state.consume_token(token)
        return False

    def forced(self) -> list[int]:
        text = b"" if self.state.is_stopped() else self.state.compute_ff_bytes()
        try:
            return self._tokens(text[:MAX_FORCED_BYTES]) if text else []
        except ValueError:
            return []

    def fork(self) -> GuidanceMatcher:
        return GuidanceMatcher(self.state.deep_copy(), self._stops, self._tokens)
