"""Chooses the library that matches grammars, by the options."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from collections.abc import Sequence as Seq
from typing import TYPE_CHECKING, Protocol

from ....config import EngineConfig
from ....manifest import GRAMMAR_LIBRARY
from ....types.engine import Vocabulary
from ...loading import pipeline_choice
from .matcher import Library, Matcher

if TYPE_CHECKING:
    from ...generation.grammar_limits import GrammarBounds, GrammarCost
    from ..sequence import Sequence

log = logging.getLogger(__name__)

NewLibrary = Callable[[EngineConfig, Vocabulary, int, Seq[int]], Library]
"""Makes a grammar library for options, a vocabulary, the width of logits and the tokens that end a text."""


class OtherLibrary(Protocol):
    """A grammar library that a feature supplies."""

    @property
    def missing(self) -> str:
        """What is missing where its packages are not installed, as a part of a sentence; empty: nothing is."""

    @property
    def install(self) -> str:
        """The command that installs it, as a sentence."""

    def load(self) -> NewLibrary:
        """Imports it. Returns what makes the library. Raises StartError."""


def compiler(
    config: EngineConfig, new: NewLibrary | None, words: Vocabulary, width: int, eos: Seq[int]
) -> Library | None:
    """Returns what compiles grammars for a vocabulary.

    Args:
        config: The options.
        new: Makes the library; None: the server has none.
        words: The texts of the tokens.
        width: The width of logits.
        eos: The tokens that end a text.

    Returns:
        The library; None if the server has none, or the texts of the tokens, or those that end a text, are unknown.
    """
    if new is None:
        refused = "schemas, grammars and required tool calls are refused: the server has no grammar library"
        log.warning("%s: %s", config.served_name, refused)
        return None
    if not words.exact or not eos:
        unknown = "that end a text are unknown" if words.exact else "have texts that are not known for certain"
        text = "%s: schemas, grammars and required tool calls are refused, as its tokens %s"
        log.warning(text, config.served_name, unknown)
        return None
    return new(config, words, width, eos)


class NewMatcher:
    """A parts.MatcherFactory for the grammars of a library."""

    def __init__(self, library: Library) -> None:
        """Keeps the library."""
        self._library = library

    def __call__(self, sequence: Sequence) -> Matcher:
        """Implements MatcherFactory."""
        return self._library.matcher(sequence.request.constraint, sequence.stops)


def chosen(config: EngineConfig) -> NewLibrary | None:
    """Returns what makes a grammar library; None: the server has none.

    Only the library that is used is imported, and the usual one by the first grammar. Raises StartError.
    """
    other: OtherLibrary | None = pipeline_choice.other_library(config)
    if other is not None:
        return other.load()
    return _at_first_grammar if config.wants(GRAMMAR_LIBRARY) else None


class FirstUse:
    """A Library that its first grammar makes. Thread-safe.

    Many models never see one, and llguidance takes 70 ms and 15 MB of a vocabulary of 150,000 tokens (2026-11).
    """

    def __init__(self, make: Callable[[], Library]) -> None:
        """Keeps what makes the library."""
        self._make = make
        self._made: Library | None = None
        self._lock = threading.Lock()

    def _library(self) -> Library:
        with self._lock:
            if self._made is None:
                self._made = self._make()
            return self._made

    def compile(self, tag: str) -> None:
        """Implements Compiler.compile."""
        self._library().compile(tag)

    def check(self, tag: str, bounds: GrammarBounds) -> GrammarCost:
        """Implements GrammarChecker.check."""
        return self._library().check(tag, bounds)

    def matcher(self, tag: str, stops: frozenset[int]) -> Matcher:
        """Implements Library.matcher."""
        return self._library().matcher(tag, stops)

    def clear(self) -> None:
        """Implements Compiler.clear."""
        if self._made is not None:
            self._made.clear()

    def stop(self) -> None:
        """Implements GrammarChecker.stop."""
        if self._made is not None:
            self._made.stop()

    def prepare(self, matchers: Seq[Matcher]) -> None:
        """Implements Library.prepare."""
        if matchers:
            self._library().prepare(matchers)


def _at_first_grammar(config: EngineConfig, words: Vocabulary, width: int, eos: Seq[int]) -> Library:
    return FirstUse(lambda: config.part(GRAMMAR_LIBRARY)(config, words, width, eos))
