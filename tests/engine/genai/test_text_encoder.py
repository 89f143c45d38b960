"""Texts to ids without the tokenizer: exactly its ids, or the tokenizer itself."""

from __future__ import annotations

import random
import re
from functools import partial

import openvino_genai as genai
import pytest

from lean_ovms.config import DEMO_MODEL
from lean_ovms.engine.genai import byte_pairs, model_info, text_encoder, vocabulary
from lean_ovms.engine.genai.ir import Graph, NotUnderstood
from lean_ovms.errors import BadRequest

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
TURN = "<|im_start|>user\nIt's 2026, and {} isn't here.\r\n\n  def f(x):\n\treturn x * 10**3  # why?<|im_end|>\n"


class Asked:
    """The demo model's tokenizer; counts the texts."""

    def __init__(self) -> None:
        self.tokenizer = genai.Tokenizer(str(DEMO_MODEL), **model_info.TOKENIZER)
        self.encode = partial(model_info.encode, self.tokenizer)
        self.texts: list[str] = []

    def __call__(self, text: str, add_special_tokens: bool) -> list[int]:
        self.texts.append(text)
        return self.encode(text, add_special_tokens)


@pytest.fixture(scope="module")
def asked() -> Asked:
    return Asked()


@pytest.fixture(scope="module")
def pieces(asked) -> list[bytes]:
    return vocabulary.build(DEMO_MODEL, asked.tokenizer).pieces


@pytest.fixture
def encode(asked, pieces) -> text_encoder.Encode:
    made = text_encoder.make(DEMO_MODEL, asked, pieces)
    assert made is not asked
    asked.texts.clear()
    return made


def test_ascii_text_never_reaches_the_tokenizer(asked, encode):
    text = TURN.format("nobody") + "<|im_start|>assistant\n"
    assert encode(text, False) == asked.encode(text, False)
    assert encode(text, True) == asked.encode(text, True)
    assert asked.texts == []


def test_only_a_new_segment_of_other_text_is_tokenized(asked, encode):
    first = TURN.format("Zoë, whose name is not in ASCII,")
    both = first + TURN.format("日本 and so on, at some length")
    assert encode(first, False) == asked.encode(first, False)
    assert asked.texts == [first.split("<|im_start|>")[1].split("<|im_end|>")[0]]
    asked.texts.clear()
    assert encode(both, False) == asked.encode(both, False)
    assert [text[:4] for text in asked.texts] == ["user"]
    assert "日本" in asked.texts[0]


def test_several_new_segments_are_one_call_and_known_afterwards(asked, encode):
    text = "".join(TURN.format(f"Zoë the {name}") for name in ("first", "second", "third"))
    assert encode(text, False) == asked.encode(text, False)
    assert asked.texts == [text]
    assert encode(text, False) == asked.encode(text, False)
    assert asked.texts == [text]


def test_random_texts_have_the_tokenizers_ids(asked, encode, pieces):
    dice = random.Random(7)
    words = [piece.decode("utf-8", "ignore") for piece in pieces]
    for _ in range(60):
        parts = dice.choices(words, k=8) + [chr(dice.randrange(1, 128)) for _ in range(12)]
        dice.shuffle(parts)
        text = "".join(parts)
        assert encode(text, False) == asked.encode(text, False), text


@pytest.mark.parametrize("text", ["", " ", "<|im_end|>", "\n<|im_end|>", "x" * 1000, "\x07", "<|im_end", "a\x00b"])
def test_short_and_odd_texts(asked, encode, text):
    assert encode(text, False) == asked.encode(text, False)


def test_a_text_that_the_tokenizer_may_cut_is_its_own(asked, encode):
    text = "a b " * 5000
    assert encode(text, False) == asked.encode(text, False)
    assert asked.texts == [text]


def test_text_that_is_not_unicode_is_refused(encode):
    with pytest.raises(BadRequest, match="Unicode"):
        encode("\ud800", False)


def test_what_is_remembered_is_bounded(asked, encode, monkeypatch):
    monkeypatch.setattr(text_encoder, "MAX_REMEMBERED", 400)
    monkeypatch.setattr(byte_pairs, "MAX_WORDS", 10)
    for number in range(40):
        text = f"{number} a text that is remembered for a while"
        assert encode(text, False) == asked.encode(text, False)
        assert sum(map(len, encode._known)) <= 400
        assert len(encode._pairs._words) <= 10


def test_a_tokenizer_that_differs_from_its_graph_is_asked(asked, pieces):
    def other(text: str, add_special_tokens: bool) -> list[int]:
        return asked.encode(re.sub(" +", " ", text), add_special_tokens)

    assert text_encoder.make(DEMO_MODEL, other, pieces) is other


def test_a_directory_without_a_graph_has_its_tokenizer(asked, pieces, tmp_path):
    assert text_encoder.make(tmp_path, asked, pieces) is asked


def test_a_large_table_is_not_read(asked, monkeypatch, pieces):
    monkeypatch.setattr(byte_pairs, "MAX_MERGES", 100)
    encoder = text_encoder.TextEncoder(Graph(DEMO_MODEL / "openvino_tokenizer.xml"), asked)
    assert encoder._pairs is None
    assert encoder.agrees(pieces)


@pytest.mark.parametrize("pattern", [GPT2, LLAMA3])
def test_patterns_of_common_models_find_all_ascii(pattern):
    dice = random.Random(3)
    find = re.compile(byte_pairs.ascii_pattern(pattern), re.ASCII)
    text = "".join(chr(dice.randrange(128)) for _ in range(3000))
    assert "".join(find.findall(text)) == text
    assert find.findall("I'll go,  to 12345 x") == (
        ["I", "'ll", " go", ",", " ", " to", " 12345", " x"]
        if pattern is GPT2
        else ["I", "'ll", " go", ",", " ", " to", " ", "123", "45", " x"]
    )


@pytest.mark.parametrize(
    "pattern", [r"\P{L}+", r"\p{Han}", r"(a)b", r"\h+", r"[[:alpha:]]", r"[a&&[b]]", r"(?<x>a)", r"[\p{M}]", "("]
)
def test_other_patterns_are_not_understood(pattern):
    with pytest.raises(NotUnderstood):
        byte_pairs.ascii_pattern(pattern)
