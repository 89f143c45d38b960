"""Which library matches grammars, by the options."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import replace
from typing import TYPE_CHECKING

from ....config import EngineConfig
from ....engine_types import Vocabulary
from ....errors import StartError
from ...generation.grammar_checker import CheckerSettings, ProcessGrammarChecker
from ...loading import pipeline_choice
from .matcher import Library, Matcher, Prepare

if TYPE_CHECKING:
    from ..sequence import Sequence

log = logging.getLogger(__name__)

GRAMMAR_PROCESS = (sys.executable, "-m", "lean_ovms.engine.paged.grammar.guidance_process")
XGRAMMAR_PROCESS = (sys.executable, "-m", "lean_ovms.engine.paged.grammar.xgrammar_process")

NewLibrary = Callable[[EngineConfig, Vocabulary, int, Seq[int]], Library]
"""Makes a grammar library for options, a vocabulary, the width of logits and the tokens that end a text."""


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
    if config.structured_output_backend != "xgrammar":
        from . import guidance

        return _guidance, guidance.prepare
    from . import xgrammar_core, xgrammar_matcher

    try:
        xgrammar_core.load()
    except xgrammar_core.NotUsable as error:
        raise StartError(
            f"--structured_output_backend xgrammar: {error}; {pipeline_choice.XGRAMMAR_INSTALL}"
        ) from error
    return _xgrammar, xgrammar_matcher.prepare


def _guidance(config: EngineConfig, words: Vocabulary, width: int, eos: Seq[int]) -> Library:
    from .guidance import Guidance

    reader = ProcessGrammarChecker(_checker_settings(config, width), GRAMMAR_PROCESS)
    return Guidance(words.pieces, width, eos, reader, special=words.special)


def _xgrammar(config: EngineConfig, words: Vocabulary, width: int, eos: Seq[int]) -> Library:
    from .xgrammar_matcher import XGrammar

    settings = replace(_checker_settings(config, width), eos=sorted(eos), probe_s=1.0)

    def checker(pieces: Seq[bytes]) -> ProcessGrammarChecker:
        return ProcessGrammarChecker(replace(settings, pieces=pieces), XGRAMMAR_PROCESS)

    return XGrammar(words.pieces, width, eos, checker, special=words.special)


def _checker_settings(config: EngineConfig, width: int) -> CheckerSettings:
    return CheckerSettings(
        model_dir=str(config.model_dir),
        width=width,
        timeout_s=config.grammar_timeout_s,
        memory_bytes=config.grammar_memory_mb << 20,
        probe_s=0.0,
    )
