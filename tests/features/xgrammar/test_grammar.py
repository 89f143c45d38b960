"""With XGrammar, a grammar allows the same texts."""

import pytest

from tests.features.guidance import test_grammar
from tests.features.guidance.test_grammar import guidance
from tests.features.xgrammar.compiled_here import sharing

pytestmark = pytest.mark.slow
__all__ = ["guidance"]
globals().update(sharing(test_grammar, [test_grammar.EOS, 0]))
