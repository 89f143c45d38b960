"""Fields of requests together with a grammar that XGrammar matches."""

import pytest

from lean_ovms.features.xgrammar.child.library import XGrammarLibrary
from tests.engine.paged.test_fields import load, test_min_tokens_and_beams_go_with_a_grammar

__all__ = ["test_min_tokens_and_beams_go_with_a_grammar"]
pytestmark = [
    pytest.mark.model,
    pytest.mark.skipif(bool(XGrammarLibrary().missing), reason=f"xgrammar is not installed: {XGrammarLibrary.install}"),
]


@pytest.fixture(scope="module")
def paged():
    loaded = load(blocks=600, pipeline_type="PAGED", structured_output_backend="xgrammar")
    yield loaded
    loaded.grammars.stop()
