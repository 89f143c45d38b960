"""XGrammar restricts the values of XML-like calls in the same way."""

import pytest

from tests.features.guidance import test_end_tags
from tests.features.xgrammar.compiled_here import sharing

pytestmark = pytest.mark.slow
globals().update(sharing(test_end_tags, [test_end_tags.EOS, 0]))
