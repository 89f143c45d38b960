"""XGrammar's library for tests, where it is installed; grammars are compiled in this process."""

from contextlib import contextmanager

import pytest

from lean_ovms.engine.loading import pipeline_choice


class Here:
    """A ProcessGrammarChecker without the process."""

    def __init__(self, compiler):
        self._compiler = compiler
        self.asked = 0

    def ask(self, tag, bounds):
        self.asked += 1
        return self._compiler.check(tag, bounds)

    def stop(self):
        self.asked = 0


@contextmanager
def xgrammar_library(pieces, width, eos, **options):
    """XGrammar for a vocabulary; skips the test without the packages."""
    if not pipeline_choice.has_xgrammar():
        pytest.skip(f"xgrammar is not installed: {pipeline_choice.XGRAMMAR_INSTALL}")
    from lean_ovms.engine.paged.grammar.xgrammar_matcher import XGrammar
    from lean_ovms.engine.paged.grammar.xgrammar_process import XGrammarCompiler

    found = XGrammar(pieces, width, eos, lambda known: Here(XGrammarCompiler(known, eos)), **options)
    try:
        yield found
    finally:
        found.stop()
