"""Grammars do not let a model write anything in values of XML-like calls that the parser would misread."""

import json

import pytest

from lean_ovms.features.guidance.child.library import Guidance
from lean_ovms.features.model_families.registry import registry
from lean_ovms.features.structured_output.constraint import build
from lean_ovms.grammar.call_syntax import GrammarContext
from lean_ovms.types import OutputConstraint
from tests.features.guidance.test_grammar import EOS, PIECES, WIDTH, fits
from tests.features.model_families.test_end_tags import FAMILIES, TOOL, read, syntax, values_with_markup, written


@pytest.fixture(scope="module")
def library():
    return Guidance(PIECES, WIDTH, [EOS, 0])


def tag_of(family):
    context = GrammarContext(form=registry().output_form(family, None), prompt_tail="", tools=(TOOL,), parallel=False)
    return build(OutputConstraint(tool_calls="required"), context).tag


ALIKE = {"deepseek_v4", "deepseek_v41", "dots", "hy_v4", "seed_oss"}
"""Families whose forms differ from those of another one only in the names of their tags."""


@pytest.mark.slow
@pytest.mark.parametrize("family", sorted({*FAMILIES} - ALIKE))
def test_a_value_that_may_be_written_is_read_as_it_is(library, family):
    tag, reader = tag_of(family), syntax(family)
    assert fits(library, tag, written(family, "a", "b"))
    key, call_end = next(iter(reader.keys)), reader.ends[0]
    values = [
        *values_with_markup(family).values(),
        *(f"a{reader.value_end}{blank}{after}" for after in (key, call_end) for blank in ("", " ", "\n")),
        f'a\n{key}"b">c',
        f"a\n{key}b>c",
    ]
    for value in values:
        text = written(family, value, "x")
        if fits(library, tag, text):
            assert json.loads(read(family, text).calls[0][1]) == {"a": value, "b": "x"}


@pytest.mark.parametrize("family", ["qwen3coder", "glm4_moe", "minimax_m2", "seed_oss", "deepseek_v32", "hy_v3"])
def test_an_end_tag_before_text_may_be_written(family):
    library = Guidance(PIECES, WIDTH, [EOS, 0])
    assert fits(library, tag_of(family), written(family, f"a {syntax(family).value_end} b", "x"))
    ended = f"a {syntax(family).value_end}{syntax(family).ends[0]}"
    assert not fits(library, tag_of(family), written(family, ended, "x"))
