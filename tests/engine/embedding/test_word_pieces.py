"""Ids of texts in ASCII without the tokenizer's IR, against those of the IR."""

from __future__ import annotations

import random
import shutil
import string
import zipfile
from pathlib import Path

import pytest

from lean_ovms.config import DEMO_EMBED
from lean_ovms.engine.embedding.word_pieces import LONGEST_WORD, MAX_NEW_WORDS, WordPieces
from lean_ovms.engine.genai.ir import Graph, NotUnderstood

IR = "openvino_tokenizer"
ZIP = Path(__file__).parents[2] / "data" / "pooling_models.zip"
FOR_THE_IR = ["caf\u00e9", "\u4e2d", "a\x01b", "a\x0bb", "[CLS] text", "a[MASK]", "x" * (LONGEST_WORD + 1)]


@pytest.fixture(scope="module")
def words() -> WordPieces:
    return WordPieces(Graph(DEMO_EMBED / f"{IR}.xml"))


@pytest.mark.model
def test_ids_are_the_tokenizers(words: WordPieces) -> None:
    import openvino as ov

    from lean_ovms.engine.embedding.tokenizer import Tokenizer

    tokenizer = Tokenizer(ov.Core(), DEMO_EMBED)
    dice = random.Random(1)
    parts = [
        "The ",
        "token",
        "ization",
        "##s ",
        "3.14",
        "don't",
        " un",
        "believ",
        "ABLE ",
        "\t\n",
        "\r",
        "_",
        "9999 ",
        "^`~$",
    ]
    printable = "".join(map(chr, range(32, 127)))
    texts = ["", " ", *("".join(dice.choices(parts, k=12)) for _ in range(100))]
    texts += ["".join(dice.choices(printable, k=40)) for _ in range(100)]
    accent = tokenizer.encode(["\u00e9"])[0]
    known = 0
    for text, by_ir in zip(texts, tokenizer.encode([f"{text} \u00e9" for text in texts]), strict=True):
        [ids] = words.encode([text])
        known += ids is not None
        assert ids is None or [*ids, *accent] == by_ir, text
    assert known > 190
    exact = tokenizer.encode(FOR_THE_IR)
    mixed = [text for pair in zip(texts, FOR_THE_IR, strict=False) for text in pair]
    assert tokenizer.encode(mixed)[1::2] == exact


def test_a_text_beyond_printable_ascii_is_for_the_ir(words: WordPieces) -> None:
    assert words.encode(FOR_THE_IR) == [None] * len(FOR_THE_IR)


def test_a_call_looks_up_a_bounded_number_of_new_words(words: WordPieces) -> None:
    dice = random.Random(2)
    new = ["".join(dice.choices(string.ascii_lowercase, k=LONGEST_WORD)) for _ in range(MAX_NEW_WORDS + 1)]
    assert words.encode([" ".join(new), "the end"])[0] is None
    first, second = words.encode([" ".join(new), " ".join(reversed(new))])  # one word was left
    assert first is not None
    assert second is not None
    assert len(first) == len(second)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('suffix_indicator="##"', 'suffix_indicator="@@"'),
        ('behaviour="isolate"', 'behaviour="remove"'),
        ('add_dummy_prefix="false"', 'add_dummy_prefix="true"'),
        ('normalization_form="nfd"', 'normalization_form="nfkc"'),
        ('type="SpecialTokensSplit"', 'type="Reshape"'),
    ],
)
def test_a_graph_with_anything_else_in_it_is_refused(tmp_path: Path, old: str, new: str) -> None:
    text = (DEMO_EMBED / f"{IR}.xml").read_text()
    assert old in text
    (tmp_path / f"{IR}.xml").write_text(text.replace(old, new))
    shutil.copy(DEMO_EMBED / f"{IR}.bin", tmp_path)
    with pytest.raises(NotUnderstood):
        WordPieces(Graph(tmp_path / f"{IR}.xml"))


@pytest.mark.parametrize("name", ["qwen3_embed", "roberta_cross"])
def test_another_kind_of_tokenizer_is_refused(tmp_path: Path, name: str) -> None:
    with zipfile.ZipFile(ZIP) as file:
        for suffix in ("xml", "bin"):
            file.extract(f"{name}/{IR}.{suffix}", tmp_path)
    with pytest.raises(NotUnderstood):
        WordPieces(Graph(tmp_path / name / f"{IR}.xml"))
