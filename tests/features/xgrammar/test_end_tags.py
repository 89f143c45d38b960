"""XGrammar restricts the values of XML-like calls in the same way."""

import pytest

from tests.features.guidance import test_end_tags
from tests.features.guidance.test_end_tags import EOS, PIECES, WIDTH
from tests.features.xgrammar.compiled_here import sharing, xgrammar_library

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def library():
    with xgrammar_library(PIECES, WIDTH, [EOS, 0]) as found:
        yield found


globals().update(sharing(test_end_tags))
