"""With XGrammar, too, special tokens are only where a grammar writes them."""

import pytest

from tests.features.guidance import test_special_tokens
from tests.features.xgrammar.compiled_here import sharing

pytestmark = pytest.mark.slow
globals().update(sharing(test_special_tokens, [test_special_tokens.EOS], special=test_special_tokens.SPECIAL))
