"""Compiles and matches grammars with llguidance, which is imported for the first grammar of a model."""

from __future__ import annotations

import json
import logging
import math
import random
import re
import sys
import threading
import time
from collections.abc import Collection, Sequence
from functools import cache
from typing import Any, NamedTuple

import llguidance
import numpy as np
from numpy.typing import NDArray

from ....config import EngineConfig
from ....engine.paged.parts import one_by_one
from ....engine.paged.sequence import Matcher, NoToken
from ....errors import GrammarInvalid, GrammarRefused, GrammarTooComplex
from ....types import Json
from ....types.engine import Vocabulary
from ....util.resources import cores
from ...structured_output import limits
from ...structured_output.child.checker import CheckerSettings, ProcessGrammarChecker
from ...structured_output.child.vocabulary import MAX_FORCED_BYTES, TOO_COMPLEX, GrammarTokens, Needed, forbid, padded
from ...structured_output.limits import GrammarBounds, GrammarCost
from . import gbnf, lark
from .schema_forms import PatternNames

log = logging.getLogger(__name__)

PROCESS = (sys.executable, "-m", f"{__package__}.process")
"""The command of the process that compiles grammars that may be costly."""

TEXT_BYTES = 32 << 20
"""Bytes of grammars and their texts in Lark, read in the process, after which those kept are dropped."""
LIMITS = llguidance.LLParserLimits(
    step_lexer_fuel=120_000, step_max_items=20_000, max_lexer_states=100_000, verbose_errors=False
)
"""An object with 200 optional properties needs more than 8,000 items, the beginning of a tool call 70,000 of fuel with
what looking ahead for text without a choice takes. What needs more is an error of its request alone."""
TRIAL_TEXTS, TRIAL_TOKENS, TRIAL_S = 3, 24, 0.25
"""A new grammar is tried with random texts before it may be matched in a step; no further token after TRIAL_S."""
LONG_TOKENS, LONG_S = 100, 0.25
"""A client's own grammar is tried with a long text, whose masks may take so much CPU time together: an ambiguous one
takes more with every token, 17 ms on average with 150,000 tokens."""
MASK_S = 0.05
"""CPU time of a mask, in the trial and in a step; more ends the request."""
INLINE_BYTES = 4096
_COSTLY = (
    *('"allOf"', '"multipleOf"', '"patternProperties"', '"minProperties"', '"maxProperties"'),
    *("%json", "::="),
)
"""A tag of at most INLINE_BYTES with none of these in it is read in a thread here, in milliseconds: others may take
seconds, or any memory, and are read first in a process that can be killed."""
PARALLEL, MASK_THREADS = 4, 8
"""The least number of masks in a step that several threads compute, and the most of these threads."""
COST_BYTES = 256 << 10
_PLACE = re.compile(r"^(at )?\d+\(\d+\): (failed to compile JSON schema: )?")
_EXCERPT = re.compile(r"\n\s*\d+ \| ")
_KEYS = re.compile(r"\[(.*)\]")


def load(config: EngineConfig, words: Vocabulary, width: int, eos: Sequence[int]) -> Guidance:
    """Makes the library for a vocabulary; `width` is the number of logits, and `eos` are the tokens that end a text."""
    reader = ProcessGrammarChecker(CheckerSettings.of(config, width), PROCESS)
    return Guidance(words.pieces, width, eos, reader, special=words.special)


class Reading(NamedTuple):
    """A grammar in the form that llguidance takes."""

    text: str
    """The grammar."""
    notices: tuple[str, ...]
    """Sentences for the client about parts of its request that the grammar does not enforce."""


def read(tag: Any) -> Reading:
    """Translates a structural tag into Lark. Raises GrammarRefused."""
    done = lark.translate(tag, lark.Converters(_regex, _ebnf, _match))
    return Reading(done.text, tuple(done.notices))


def validate(text: str) -> None:
    """Compiles a grammar without a vocabulary. Raises GrammarRefused."""
    failed, messages = llguidance.LLMatcher.validate_grammar_with_warnings(text, limits=LIMITS)
    if failed:
        raise _error(messages[0])


class Guidance:
    """The grammar library llguidance with a vocabulary. It is thread-safe.

    Compiling takes milliseconds and needs no separate process. The vocabulary is read for the first grammar, which
    takes 0.5 s for 150,000 tokens.
    """

    def __init__(
        self,
        pieces: Sequence[bytes],
        width: int,
        eos: Sequence[int],
        reader: ProcessGrammarChecker | None = None,
        *,
        special: Collection[int] = (),
    ) -> None:
        """Keeps the vocabulary.

        Args:
            pieces: The bytes of each token.
            width: The width of the logits.
            eos: The tokens that end a text.
            reader: The process in which grammars are compiled first that may be costly; None if all are compiled here.
            special: The special tokens, which an answer does not show.
        """
        self._reader = reader
        self._read: dict[str, Reading] = {}
        self._read_bytes = 0
        self._width, self._eos = width, sorted(eos)
        self._tokenizer: Any = None
        self._executor: Any = None  # computes masks in several threads
        self._lock = threading.Lock()
        self._compiled: dict[str, tuple[Any, Needed]] = {}
        self._tokens = GrammarTokens(padded(pieces, width), self._eos, special)

    def compile(self, tag: str) -> None:
        """Compiles a grammar for `matcher`. Raises GrammarRefused."""
        if tag not in self._compiled:
            self._compiled[tag] = self._built(tag)[0], self._tokens.special.needed(_parsed(tag))

    def clear(self) -> None:
        with self._lock:
            self._compiled.clear()
            self._read.clear()
            self._read_bytes = 0

    def check(self, tag: str, bounds: GrammarBounds) -> GrammarCost:
        start = time.perf_counter()
        if self._reader is None or (len(tag) <= INLINE_BYTES and not any(word in tag for word in _COSTLY)):
            limits.check(tag, bounds)
        else:
            answer = self._reader.ask(tag, bounds)
            self._keep(tag, Reading(answer["text"], tuple(answer["notices"])))
        built, notices = self._built(tag)
        mask_s = self._try(built, '"grammar"' in tag)
        return GrammarCost(time.perf_counter() - start, COST_BYTES, mask_s, notices)

    def stop(self) -> None:
        if self._reader is not None:
            self._reader.stop()

    def matcher(self, tag: str, stops: frozenset[int]) -> GuidanceMatcher:
        """Returns a matcher at the beginning of a grammar; `stops` may end a text where the grammar allows the end."""
        self.compile(tag)
        built, needed = self._compiled[tag]
        return GuidanceMatcher(built.deep_copy(), stops | frozenset(self._eos), self._tokens, needed)

    def prepare(self, matchers: Sequence[Matcher]) -> None:
        """Computes the masks of a step for several matchers, in threads if there are enough of them."""
        ready = [one for one in matchers if isinstance(one, GuidanceMatcher) and one.needs_mask]
        if len(ready) < PARALLEL or (threads := _most_threads()) == 1:
            one_by_one(ready)
            return
        if self._executor is None:
            self._executor = llguidance.LLExecutor(threads)
        masks = np.zeros((len(ready), len(ready[0].mask)), np.uint32)
        states = [(one.state, place) for place, one in enumerate(ready)]
        self._executor.unsafe_compute_mask_ptr(states, masks.ctypes.data, masks.strides[0], len(masks))
        for one, mask in zip(ready, masks, strict=True):
            one.set_mask(mask)

    def _built(self, tag: str) -> tuple[Any, tuple[str, ...]]:
        """Compiles a grammar, and returns llguidance's matcher and notices of what it does not enforce."""
        reading = self._read.get(tag) or read(_parsed(tag))
        with self._lock:
            if self._tokenizer is None:
                wrapper = llguidance.TokenizerWrapper(self._tokens)
                self._tokenizer = llguidance.LLTokenizer(wrapper, len(self._tokens.tokens), self._eos)
        built = llguidance.LLMatcher(self._tokenizer, reading.text, log_level=0, limits=LIMITS)
        _raise_for(built)
        return built, (*reading.notices, *map(_notice, built.get_grammar_warnings()))

    def _keep(self, tag: str, reading: Reading) -> None:
        """Keeps a grammar that the other process has read. If all have too many bytes, the others are dropped."""
        with self._lock:
            if self._read_bytes > TEXT_BYTES:
                self._read.clear()
                self._read_bytes = 0
            self._read[tag] = reading
            self._read_bytes += len(tag) + len(reading.text)

    def _try(self, built: Any, long: bool) -> float:
        """Matches random texts for a while, and returns the CPU time of the slowest mask. Raises GrammarTooComplex."""
        end = time.monotonic() + TRIAL_S
        slowest = max(self._walk(built.deep_copy(), random.Random(i), TRIAL_TOKENS, end) for i in range(TRIAL_TEXTS))
        if long:
            slowest = max(slowest, self._walk(built.deep_copy(), random.Random(0), LONG_TOKENS, math.inf))
        return slowest

    def _walk(self, state: Any, rng: random.Random, tokens: int, end: float) -> float:
        slowest = together = 0.0
        for _ in range(tokens):
            if state.is_stopped() or time.monotonic() > end:
                break
            start = time.thread_time()
            mask = state.compute_bitmask()
            used = time.thread_time() - start
            slowest, together = max(slowest, used), together + used
            if together > LONG_S:
                raise GrammarTooComplex("The grammar is too complex: its tokens take too much time together")
            if slowest > MASK_S:
                raise GrammarTooComplex(f"The grammar is too complex: a token takes more than {1000 * MASK_S:.0f} ms")
            _raise_for(state)
            token = self._any_token(mask, rng)
            if token is None:
                break
            state.consume_token(token)
        return slowest

    def _any_token(self, mask: bytes, rng: random.Random) -> int | None:
        """Returns a random token that a mask allows and that does not end the text; the distribution is not uniform."""
        allowed = np.frombuffer(mask, np.uint8)[: self._width // 8 + 1].copy()
        for end in self._eos:
            allowed[end >> 3] &= ~np.uint8(1 << (end & 7))
        filled = np.flatnonzero(allowed)
        if not len(filled):
            return None
        place = int(rng.choice(filled))
        return 8 * place + rng.choice([bit for bit in range(8) if allowed[place] >> bit & 1])


def _parsed(tag: str) -> Any:
    try:
        return json.loads(tag)
    except ValueError:
        raise GrammarInvalid("The structural tag is not JSON") from None


def _regex(pattern: str) -> str:
    """Translates a regular expression to Lark. Its digits are the ASCII ones, as for XGrammar."""
    return f"(/{llguidance.regex_to_lark(pattern, 'd')}/)"


def _ebnf(grammar: str) -> str:
    try:
        return gbnf.to_lark(grammar)
    except RecursionError:
        raise GrammarTooComplex("The grammar is nested too deeply") from None


def _match(pattern: str, names: Sequence[str]) -> PatternNames:
    """Returns which of the names a schema's pattern matches, and whether it matches other names as well."""
    one = _in_bytes({"type": "string", "pattern": pattern})
    declared = tuple(name for name in names if _fits(one, json.dumps(name, ensure_ascii=False)))
    rest = dict.fromkeys(names, False)
    named = {"type": "object", "properties": rest, "patternProperties": {pattern: True}, "additionalProperties": False}
    return PatternNames(declared, _in_bytes(named).validate_tokens(_bytes().tokenize_str('{"')) == 2)


def _in_bytes(schema: Json) -> Any:
    """Returns a matcher of a schema whose tokens are single bytes."""
    matcher = llguidance.LLMatcher(_bytes(), f"start: %json {json.dumps(schema)}\n", log_level=0, limits=LIMITS)
    _raise_for(matcher)
    return matcher


@cache
def _bytes() -> Any:
    return llguidance.LLTokenizer("byte")


def _fits(matcher: Any, text: str) -> bool:
    """Returns whether a grammar accepts the whole text."""
    state, ids = matcher.deep_copy(), _bytes().tokenize_str(text)
    return bool(state.validate_tokens(ids) == len(ids) and state.consume_tokens(ids) and state.is_accepting())


def _notice(warning: str) -> str:
    """Converts a warning of llguidance to a text for clients with the keywords that it names."""
    if warning.startswith("oneOf"):
        return "oneOf (treated as anyOf)"
    if warning.startswith("Unknown format: "):
        return f"format {warning.removeprefix('Unknown format: ')}"
    keys = _KEYS.search(warning)
    return keys[1].replace('"', "") if keys else warning.splitlines()[0][:200]


def _raise_for(state: Any) -> None:
    if state.is_error():
        raise _error(str(state.get_error()))


def _error(message: str) -> GrammarRefused:
    """Converts an error message of llguidance; positions are removed, since they are not in the client's text."""
    text = _PLACE.sub("", " ".join(_EXCERPT.split(message)[0].split()))[:300]
    if any(word in text for word in ("too many", "too complex", "too deep", "fuel", "limit", "too big", "too large")):
        return GrammarTooComplex(f"The grammar is too complex: {text}")
    return GrammarInvalid(text)


@cache
def _most_threads() -> int:
    return min(MASK_THREADS, cores())


class GuidanceMatcher:
    """The state of a sequence in its grammar, with the mask of the tokens that may come next."""

    __slots__ = ("_needed", "_ready", "_slow", "_stops", "_tokens", "mask", "state")

    def __init__(self, state: Any, stops: frozenset[int], tokens: GrammarTokens, needed: Needed) -> None:
        self.state = state
        self._needed = needed
        self._stops = stops
        self._tokens = tokens
        self.mask = np.zeros(-(-len(tokens.tokens) // 32), np.uint32)
        self._ready = self._slow = False

    @property
    def needs_mask(self) -> bool:
        """Whether the mask has to be computed, since it is missing and the text has not ended."""
        return not self._ready and not self.state.is_stopped()

    def set_mask(self, mask: NDArray[np.uint32]) -> None:
        """Sets the mask of the next token, which was computed for several matchers at once."""
        self.mask = mask
        self._ready = True

    def prepare(self) -> None:
        if self.needs_mask:
            began = time.thread_time()
            self.state.unsafe_compute_mask_ptr(self.mask.ctypes.data, self.mask.nbytes)
            self._slow = self._slow or time.thread_time() - began > MASK_S
            self._ready = True

    def apply(self, row: NDArray[np.float32]) -> None:
        self.prepare()
        if self._slow or self.state.is_error():
            raise NoToken(TOO_COMPLEX)
        ends = self._stops if self.state.is_accepting() else ()
        if not self._ready:
            forbid(row, None, ends)
        else:
            forbid(row, self.mask, ends, self._tokens.special.forbidden(self.mask, self._needed))

    def consume(self, token: int) -> bool:
        """Adds the next token. Returns True for an end token, which ends the grammar."""
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
        return GuidanceMatcher(self.state.deep_copy(), self._stops, self._tokens, self._needed)
