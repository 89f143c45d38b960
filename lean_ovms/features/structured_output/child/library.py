"""The libraries that compile grammars, check them and match texts with them, and which of them a model has."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from functools import cached_property, partial
from typing import TYPE_CHECKING, Protocol

from ....config import EngineConfig
from ....engine.paged.parts import NoGrammars, PagedGrammars
from ....engine.paged.sequence import Matcher
from ....manifest import GRAMMAR_LIBRARY, OTHER_GRAMMAR_LIBRARY
from ....types.engine import Vocabulary
from ..feature import StructuredOutputOptions

if TYPE_CHECKING:
    from ....engine.paged.sequence import Sequence as PagedSequence
    from .limits import GrammarBounds, GrammarCost
    from .queue import GrammarQueue

log = logging.getLogger(__name__)

USUAL = ("auto", "guidance")
"""The values of --structured_output_backend for the library that the paged engine has in any case."""


class Library(Protocol):
    """A grammar library with a vocabulary: it compiles grammars and makes the matchers of sequences."""

    def compile(self, tag: str) -> None:
        """Implements Compiler."""

    def clear(self) -> None:
        """Implements Compiler."""

    def check(self, tag: str, bounds: GrammarBounds) -> GrammarCost:
        """Implements GrammarChecker."""

    def stop(self) -> object:
        """Implements GrammarChecker."""

    def matcher(self, tag: str, stops: frozenset[int]) -> Matcher:
        """Returns a matcher that stands at the beginning of a grammar.

        Args:
            tag: The grammar.
            stops: The tokens that may end the text where the grammar can end.
        """

    def prepare(self, matchers: Sequence[Matcher]) -> None:
        """Computes the masks of a step, which are those of matchers that it has made."""


NewLibrary = Callable[[EngineConfig, Vocabulary, int, Sequence[int]], Library]
"""Makes a grammar library for options, a vocabulary, the width of logits and the tokens that end a text."""


class OtherLibrary(Protocol):
    """A grammar library that a feature supplies for those who ask for it."""

    @property
    def missing(self) -> str:
        """What is missing where its packages are not installed, as a part of a sentence; empty: nothing is."""

    @property
    def install(self) -> str:
        """The command that installs it, as a sentence."""

    def load(self) -> NewLibrary:
        """Imports it. Returns what makes the library. Raises StartError."""


class LibraryGrammars:
    """An engine.paged.parts.PagedGrammars by a library that its first grammar makes. Thread-safe.

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

    def new_queue(self, wake: Callable[[], None], config: EngineConfig) -> GrammarQueue:
        """Implements Grammars."""
        from .queue import GrammarQueue  # late: many models never see a grammar

        return GrammarQueue(self, self, wake, config)

    def compile(self, tag: str) -> None:
        """Implements Compiler.compile."""
        self._library().compile(tag)

    def clear(self) -> None:
        """Implements Compiler.clear."""
        if self._made is not None:
            self._made.clear()

    def check(self, tag: str, bounds: GrammarBounds) -> GrammarCost:
        """Implements GrammarChecker.check."""
        return self._library().check(tag, bounds)

    def stop(self) -> None:
        """Implements GrammarChecker.stop."""
        if self._made is not None:
            self._made.stop()

    def matcher(self, sequence: PagedSequence) -> Matcher:
        """Implements PagedGrammars.matcher."""
        return self._library().matcher(sequence.request.constraint, sequence.stops)

    def prepare(self, matchers: Sequence[Matcher]) -> None:
        """Implements PagedGrammars.prepare."""
        if matchers:
            self._library().prepare(matchers)


class GrammarLibraries:
    """An engine.paged.parts.GrammarSource: the library of a model's options."""

    def __init__(self, config: EngineConfig) -> None:
        """Imports no library yet."""
        self._config = config
        self._name = config.of(StructuredOutputOptions).structured_output_backend

    @cached_property
    def _other(self) -> OtherLibrary | None:
        """Another library than the usual one; None: it is the usual one, or there is no other."""
        make = None if self._name in USUAL else self._config.composition.part(OTHER_GRAMMAR_LIBRARY)
        return None if make is None else make()

    @property
    def missing(self) -> str:
        """Implements GrammarSource."""
        if self._name in USUAL:
            return ""
        return f"--structured_output_backend {self._name}" if self._other is None else self._other.missing

    @property
    def install(self) -> str:
        """Implements GrammarSource."""
        return "" if self._other is None else self._other.install

    def load(self) -> Callable[[Vocabulary, int, Sequence[int]], PagedGrammars]:
        """Implements GrammarSource. The usual library is imported by the first grammar."""
        new: NewLibrary | None = self._usual if self._config.wants(GRAMMAR_LIBRARY) else None
        return partial(_grammars, self._config, new if self._other is None else self._other.load())

    @staticmethod
    def _usual(config: EngineConfig, words: Vocabulary, width: int, eos: Sequence[int]) -> Library:
        made: Library = config.part(GRAMMAR_LIBRARY)(config, words, width, eos)
        return made


def _grammars(
    config: EngineConfig, new: NewLibrary | None, words: Vocabulary, width: int, eos: Sequence[int]
) -> PagedGrammars:
    """Returns the grammars that can be matched with a vocabulary.

    Args:
        config: The options.
        new: Makes the library; None: the server has none.
        words: The texts of the tokens.
        width: The width of logits.
        eos: The tokens that end a text.

    Returns:
        The grammars: none if the server has no library, or the texts of the tokens, or those that end a text, are
        unknown.
    """
    if new is None:
        refused = "schemas, grammars and required tool calls are refused: the server has no grammar library"
        log.warning("%s: %s", config.served_name, refused)
        return NoGrammars()
    if not words.exact or not eos:
        unknown = "that end a text are unknown" if words.exact else "have texts that are not known for certain"
        text = "%s: schemas, grammars and required tool calls are refused, as its tokens %s"
        log.warning(text, config.served_name, unknown)
        return NoGrammars()
    return LibraryGrammars(partial(new, config, words, width, eos))
