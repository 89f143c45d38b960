"""Texts are divided into pieces that are spoken one after the other."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lean_ovms.features.voice.model import SHORT, split

LONG = "one two three four five six seven eight nine ten"


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        ("Hello.", ["Hello."]),
        ("The first sentence is here. The second one is there!", ["The first sentence is here.",
                                                                  "The second one is there!"]),
        ("Dr. Smith lives in St. Louis. He is well.", ["Dr. Smith lives in St. Louis.", "He is well."]),
        ("NASA and the FBI met Dr. Smith on Jan. 3rd, 2024. So did J. R. R. Tolkien.",
         ["NASA and the FBI met Dr. Smith on Jan. 3rd, 2024.", "So did J. R. R. Tolkien."]),
        ("They took all of the others, e.g. Mrs. Jones and I. So did he.",
         ["They took all of the others, e.g. Mrs. Jones and I.", "So did he."]),
        ("It is a word that ends with Gr. And it goes on.", ["It is a word that ends with Gr.", "And it goes on."]),
        ("They saw the large Dogmar. And it goes on.", ["They saw the large Dogmar.", "And it goes on."]),
        ("It costs 3.50 euros at example.com today", ["It costs 3.50 euros at example.com today"]),
        ('He said "stop here right now!" and then he left.', ['He said "stop here right now!"', "and then he left."]),
        ("今日はとても良い天気ですから散歩に行きましょう。明日もそうでしょう。",
         ["今日はとても良い天気ですから散歩に行きましょう。", "明日もそうでしょう。"]),
        ("a line that has no full stop\nand the next line", ["a line that has no full stop", "and the next line"]),
        ("  many   \t spaces\n", ["many spaces"]),
        (" \n\t ", []),
        ("", []),
        ("...", ["..."]),
    ],
)  # fmt: skip
def test_whole_sentences_are_pieces(text: str, pieces: list[str]) -> None:
    assert split(text, 100) == pieces


def test_a_long_sentence_is_cut_at_a_clause_else_at_a_space_else_anywhere() -> None:
    assert split("one two three four five, six seven eight nine", 30) == [
        "one two three four five,", "six seven eight nine"
    ]  # fmt: skip
    assert split(LONG, 20) == ["one two three four", "five six seven", "eight nine ten"]
    assert split("x" * 45, 20) == ["x" * 20, "x" * 20, "x" * 5]


def test_a_character_that_becomes_several_counts_as_several() -> None:
    [*pieces] = split("ﷺ" * 10, 40)  # becomes 18 characters each in the tokenizer's normal form
    assert len("".join(pieces)) > 100
    assert max(map(len, pieces)) <= 40


@given(st.text(max_size=120), st.integers(1, 30))
@pytest.mark.slow
def test_nothing_is_lost_and_no_piece_is_too_long(text: str, most: int) -> None:
    pieces = split(text, most)
    assert all(0 < len(piece) <= most for piece in pieces)
    whole = split(text, 10_000)
    assert "".join("".join(pieces).split()) == "".join("".join(whole).split())


@pytest.mark.slow
def test_a_hostile_text_is_split_in_linear_time() -> None:
    """The text has the most characters that a request may have, of kinds that end sentences and clauses."""
    for text in ("." * 4096, ". " * 2048, ", " * 2048, '!"' * 2048, "\n" * 4096, "。」" * 2048, "a" * 4096):
        assert sum(map(len, split(text, 240))) <= 4096
    assert SHORT < 240
