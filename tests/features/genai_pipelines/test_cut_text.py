"""A tokenizer that returns only the last tokens encodes long texts in parts."""

import pytest

from lean_ovms.errors import BadRequest
from lean_ovms.features.genai_pipelines.child.base import MOST_TOKENS, encode_cut


class Cutting:
    """A tokenizer with one token per character that returns only the last MOST_TOKENS. `texts` has its arguments."""

    def __init__(self):
        self.texts = []

    def encode(self, text, add_special_tokens):
        self.texts.append(text)
        ids = [0] * add_special_tokens + [ord(c) for c in text]
        return Ids(ids[-MOST_TOKENS:])


class Ids:
    def __init__(self, ids):
        import numpy

        self.input_ids = self
        self.data = numpy.array([ids])


def test_long_texts_are_tokenized_in_parts_that_end_at_line_breaks():
    tokenizer, long = Cutting(), "word word\n" * 5000 + "end"
    ids = encode_cut(tokenizer, long, True)
    assert ids == [0, *map(ord, long)]
    parts = tokenizer.texts[1:]
    assert all(p.endswith(("\n", "end")) for p in parts)


def test_a_short_text_is_asked_for_once():
    tokenizer = Cutting()
    assert encode_cut(tokenizer, "a\nb", False) == [97, 10, 98]
    assert tokenizer.texts == ["a\nb"]


@pytest.mark.parametrize("long", ["a" * 9000, "a \n" * 4000, "\n" * 9000])
def test_a_text_that_cannot_be_parted_is_refused(long):
    with pytest.raises(BadRequest, match="8192"):
        encode_cut(Cutting(), long, False)
