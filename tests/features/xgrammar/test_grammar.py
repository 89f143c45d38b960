"""With XGrammar, a grammar allows the same texts."""

import pytest

from tests.features.guidance import test_grammar
from tests.features.guidance.test_grammar import EOS, PIECES, WIDTH, guidance
from tests.features.xgrammar.compiled_here import sharing, xgrammar_library

pytestmark = pytest.mark.slow
__all__ = ["guidance"]


@pytest.fixture(scope="module")
def library():
    with xgrammar_library(PIECES, WIDTH, [EOS, 0]) as found:
        yield found


globals().update(sharing(test_grammar))
