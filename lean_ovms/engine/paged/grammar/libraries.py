"""Which library matches grammars, by the options."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from collections.abc import Sequence as Seq
from typing import TYPE_CHECKING, Protocol

from ....config import EngineConfig
from ....types.engine import Vocabulary
from ...generation.grammar_checker import CheckerSettings, ProcessGrammarChecker
from ...loading import pipeline_choice
from .matcher import Library, Matcher, Prepare

if TYPE_CHECKING:
    from ..sequence import Sequence

log = logging.getLogger(__name__)

GRAMMAR_PROCESS = (sys.executable, "-m", "lean_ovms.engine.paged.grammar.guidance_process")

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

    def load(self) -> tuple[NewLibrary, Prepare]:
        """Imports it. Returns what makes the library, and what computes a step's masks. Raises StartError."""


def compiler(config: EngineConfig, new: NewLibrary, words: Vocabulary, width: int, eos: Seq[int]) -> Library | None:
    """Returns what compiles grammars for a vocabulary.

    Args:
        config: The options.
        new: Makes the library.
        words: The texts of the tokens.
        width: The width of logits.
        eos: The tokens that end a text.

    Returns:
        The library; None if the texts of the tokens, or those that end a text, are unknown.
    """
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


def chosen(config: EngineConfig) -> tuple[NewLibrary, Prepare]:
    """Returns what makes a grammar library, and what computes a step's masks.

    Only the library that is used is imported. Raises StartError.
    """
    other: OtherLibrary | None = pipeline_choice.other_library(config)
    if other is not None:
        return other.load()
    from . import guidance

    return _guidance, guidance.prepare


def _guidance(config: EngineConfig, words: Vocabulary, width: int, eos: Seq[int]) -> Library:
    from .guidance import Guidance

    reader = ProcessGrammarChecker(checker_settings(config, width), GRAMMAR_PROCESS)
    return Guidance(words.pieces, width, eos, reader, special=words.special)


def checker_settings(config: EngineConfig, width: int) -> CheckerSettings:
    """Returns the settings of the process that compiles grammars. width: the number of logits of a token."""
    return CheckerSettings(
        model_dir=str(config.model_dir),
        width=width,
        timeout_s=config.grammar_timeout_s,
        memory_bytes=config.grammar_memory_mb << 20,
        probe_s=0.0,
    )
