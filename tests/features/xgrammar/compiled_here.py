"""XGrammar's library for tests, where it is installed. Grammars are compiled in this process."""

import inspect
from contextlib import contextmanager

import pytest

from lean_ovms.features.xgrammar.child.library import XGrammarLibrary


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
    """Returns XGrammar for a vocabulary. Skips the test if the packages are missing."""
    if XGrammarLibrary().missing:
        pytest.skip(f"xgrammar is not installed: {XGrammarLibrary.install}")
    from lean_ovms.features.xgrammar.child.matcher import XGrammar
    from lean_ovms.features.xgrammar.child.process import XGrammarCompiler

    found = XGrammar(pieces, width, eos, lambda known: Here(XGrammarCompiler(known, eos)), **options)
    try:
        yield found
    finally:
        found.stop()


def sharing(module, eos, **options):
    """Returns the tests of a module that take a grammar library, and XGrammar for them in its place."""

    @pytest.fixture(scope="module")
    def library():
        with xgrammar_library(module.PIECES, module.WIDTH, eos, **options) as found:
            yield found

    tests = {name: one for name, one in vars(module).items() if name.startswith("test_")}
    of_library = {name: one for name, one in tests.items() if "library" in inspect.signature(one).parameters}
    return {**of_library, "library": library}
