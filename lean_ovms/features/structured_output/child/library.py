"""The libraries that compile, check and match grammars, and the choice of a model's library."""

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
    from ..limits import GrammarBounds, GrammarCost
    from .queue import GrammarQueue

log = logging.getLogger(__name__)

USUAL = ("auto", "guidance")
"""The values of --structured_output_backend for the library that the paged engine has in any case."""


class Library(Protocol):
    """A grammar library with a vocabulary: it compiles grammars and makes matchers of sequences."""

    def compile(self, tag: str) -> None:
        """Compiles a grammar in advance. Raises errors.BadRequest."""

    def clear(self) -> None:
        """Drops everything that is compiled. It is called between steps only."""

    def check(self, tag: str, bounds: GrammarBounds) -> GrammarCost:
        """Returns the cost of a grammar. Raises RequestError if it is invalid, beyond the bounds, or too slow."""

    def stop(self) -> object:
        """Frees the resources of checking; the next `check` takes them again."""

    def matcher(self, tag: str, stops: frozenset[int]) -> Matcher:
        """Returns a matcher at the beginning of a grammar; `stops` may end a text where the grammar allows the end."""

    def prepare(self, matchers: Sequence[Matcher]) -> None:
        """Computes the masks of a step for matchers that this library has made."""


NewLibrary = Callable[[EngineConfig, Vocabulary, int, Sequence[int]], Library]
"""Makes a grammar library for options, a vocabulary, the width of logits and the tokens that end a text."""


class OtherLibrary(Protocol):
    """A grammar library that a feature provides, and that options can select."""

    @property
    def missing(self) -> str:
        """The missing packages, as a part of a sentence; "" if all are installed."""

    @property
    def install(self) -> str:
        """A sentence with the command that installs the library."""

    def load(self) -> NewLibrary:
        """Imports the library, and returns the function that makes it. Raises StartError."""


class LibraryGrammars:
    """The grammars of a paged engine, whose library is loaded for the first grammar. Thread-safe.

    Many models never get a grammar, and llguidance takes 70 ms and 15 MB for a vocabulary of 150,000 tokens (2026-11).
    """

    def __init__(self, make: Callable[[], Library]) -> None:
        """Keeps the function that makes the library."""
        self._make = make
        self._made: Library | None = None
        self._lock = threading.Lock()

    def _library(self) -> Library:
        with self._lock:
            if self._made is None:
                self._made = self._make()
            return self._made

    def new_queue(self, wake: Callable[[], None], config: EngineConfig) -> GrammarQueue:
        """Returns a new queue of requests that wait for their grammars; `wake` ends the wait of the engine's loop."""
        from .queue import GrammarQueue  # late, because many models never need grammars

        return GrammarQueue(self, self, wake, config)

    def compile(self, tag: str) -> None:
        """Compiles a grammar. Raises errors.BadRequest."""
        self._library().compile(tag)

    def clear(self) -> None:
        """Drops everything that is compiled."""
        if self._made is not None:
            self._made.clear()

    def check(self, tag: str, bounds: GrammarBounds) -> GrammarCost:
        """Returns the cost of a grammar. Raises RequestError if it is invalid, beyond the bounds, or too slow."""
        return self._library().check(tag, bounds)

    def stop(self) -> None:
        """Frees the resources of checking."""
        if self._made is not None:
            self._made.stop()

    def matcher(self, sequence: PagedSequence) -> Matcher:
        """Returns a matcher at the beginning of a sequence's grammar."""
        return self._library().matcher(sequence.request.constraint, sequence.stops)

    def prepare(self, matchers: Sequence[Matcher]) -> None:
        """Computes the masks of a step for matchers."""
        if matchers:
            self._library().prepare(matchers)


class GrammarLibraries:
    """Chooses and loads the grammar library of a model by its options."""

    def __init__(self, config: EngineConfig) -> None:
        """Keeps the options; no library is imported yet."""
        self._config = config
        self._name = config.of(StructuredOutputOptions).structured_output_backend

    @cached_property
    def _other(self) -> OtherLibrary | None:
        """The library that a feature provides and the options select; None if it is the usual library."""
        make = None if self._name in USUAL else self._config.composition.part(OTHER_GRAMMAR_LIBRARY)
        return None if make is None else make()

    @property
    def missing(self) -> str:
        """The missing packages of the library, as a part of a sentence; "" if all are installed."""
        if self._name in USUAL:
            return ""
        return f"--structured_output_backend {self._name}" if self._other is None else self._other.missing

    @property
    def install(self) -> str:
        """A sentence with the command that installs the library."""
        return "" if self._other is None else self._other.install

    def load(self) -> Callable[[Vocabulary, int, Sequence[int]], PagedGrammars]:
        """Returns a function that makes the grammars for a vocabulary, the width of logits and the end tokens.

        The usual library is imported only for the first grammar.
        """
        new: NewLibrary | None = self._usual if self._config.wants(GRAMMAR_LIBRARY) else None
        return partial(_grammars, self._config, new if self._other is None else self._other.load())

    @staticmethod
    def _usual(config: EngineConfig, words: Vocabulary, width: int, eos: Sequence[int]) -> Library:
        made: Library = config.part(GRAMMAR_LIBRARY)(config, words, width, eos)
        return made


def _grammars(
    config: EngineConfig, new: NewLibrary | None, words: Vocabulary, width: int, eos: Sequence[int]
) -> PagedGrammars:
    """Returns the grammars of a model with a vocabulary.

    Args:
        config: The options.
        new: Makes the library; None if the server has no library.
        words: The texts of the tokens.
        width: The width of logits.
        eos: The tokens that end a text.

    Returns:
        The grammars, or NoGrammars if the server has no library, or if the exact texts of the tokens or the end tokens
        are unknown.
    """
    if new is None:
        refused = "schemas, grammars and required tool calls are refused, since the server has no grammar library"
        log.warning("%s: %s", config.served_name, refused)
        return NoGrammars()
    if not words.exact or not eos:
        unknown = "that end a text are unknown" if words.exact else "have texts that are not certain"
        text = "%s: schemas, grammars and required tool calls are refused, since its tokens %s"
        log.warning(text, config.served_name, unknown)
        return NoGrammars()
    return LibraryGrammars(partial(new, config, words, width, eos))
