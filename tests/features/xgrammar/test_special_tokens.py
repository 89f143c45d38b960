"""With XGrammar, too, special tokens are only where a grammar writes them."""

import pytest

from tests.features.guidance import test_special_tokens
from tests.features.guidance.test_special_tokens import EOS, PIECES, SPECIAL, WIDTH
from tests.features.xgrammar.compiled_here import sharing, xgrammar_library

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def library():
    with xgrammar_library(PIECES, WIDTH, [EOS], special=SPECIAL) as found:
        yield found


globals().update(sharing(test_special_tokens))
