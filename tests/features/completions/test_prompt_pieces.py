"""Texts of special tokens in the texts of clients."""

from hypothesis import given
from hypothesis import strategies as st

from lean_ovms.features.completions.prompt_pieces import TextCutter

SPECIAL = ["<|a|>", "<|ab|>", "<<", "|><|", "aba", "<a>"]
CUTTER = TextCutter(SPECIAL)


@given(st.text("<|ab>", max_size=40))
def test_a_text_is_cut_inside_each_special_token_and_nowhere_else(text):
    pieces = CUTTER.cut(text, 100)
    ends = [len("".join(pieces[:count])) for count in range(1, len(pieces))]
    assert "".join(pieces) == text
    assert not [piece for piece in pieces if any(word in piece for word in SPECIAL)]
    assert ends == [at + 1 for at in range(len(text)) if text.startswith(tuple(SPECIAL), at)]


def test_a_text_of_too_many_pieces_is_not_cut():
    assert CUTTER.cut("<<" * 3, 6) == ["<"] * 6
    for most in (5, 0, -1):
        assert CUTTER.cut("<<" * 3, most) == ["<<" * 3]
    assert CUTTER.cut("plain", 0) == ["plain"]
