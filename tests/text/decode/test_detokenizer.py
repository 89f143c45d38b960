"""Token ids to text: every complete character at once, never half of one."""

from __future__ import annotations

import random

import pytest

from lean_ovms.text.decode.detokenizer import Detokenizer, WindowDetokenizer
from lean_ovms.types.engine import Vocabulary

PIECES = [b"<s>", b"</s>", b" Hello", b" world", b"!", "é".encode(), "日本".encode(), b"", b" "]
BYTE = len(PIECES)  # BYTE + b is the token of byte b
VOCABULARY = Vocabulary(pieces=[*PIECES, *[bytes([b]) for b in range(256)]], special=frozenset({0, 1}))
SPM = Vocabulary(pieces=VOCABULARY.pieces, special=VOCABULARY.special, strip_leading_space=True)


def as_bytes(text: str) -> list[int]:
    return [BYTE + byte for byte in text.encode()]


def whole(vocabulary: Vocabulary, tokens: list[int], skip: bool) -> str:
    """Decodes by the definition: all bytes at once."""
    size = len(vocabulary.pieces)
    shown = [t for t in tokens if 0 <= t < size and not (skip and t in vocabulary.special)]
    data = b"".join(vocabulary.pieces[t] for t in shown)
    return (data.removeprefix(b" ") if vocabulary.strip_leading_space else data).decode("utf-8", "replace")


def test_a_character_waits_for_its_last_byte_and_text_before_it_does_not():
    detokenizer = Detokenizer(VOCABULARY, True)
    shown = [detokenizer.feed([t]) for t in as_bytes("a🙂b")]
    assert shown == ["a", "", "", "", "🙂", "b"]
    assert detokenizer.feed([2, *as_bytes("é")[:1]]) == " Hello"
    assert detokenizer.feed([*as_bytes("é")[1:], 4]) == "é!"


def test_bytes_that_are_no_text_do_not_hold_anything_back():
    detokenizer = Detokenizer(VOCABULARY, True)
    assert detokenizer.feed([BYTE + 0xFF]) == "\ufffd"
    assert detokenizer.feed([BYTE + 0xE2, 2]) == "\ufffd Hello"
    assert [detokenizer.feed([token]) for token in (BYTE + 0xE2, 2)] == ["", "\ufffd Hello"]


def test_a_piece_is_a_tokens_own_bytes_special_or_not():
    detokenizer = Detokenizer(SPM, True)
    assert detokenizer.piece(0) == b"<s>"
    assert detokenizer.piece(2) == b" Hello"
    assert detokenizer.piece(BYTE + 0xE2) == b"\xe2"


@pytest.mark.parametrize("vocabulary", [VOCABULARY, SPM], ids=["plain", "strips"])
@pytest.mark.parametrize("skip", [True, False])
@pytest.mark.slow
def test_any_cut_gives_the_whole_text(vocabulary, skip):
    dice = random.Random(2)
    for _ in range(1500):
        tokens = [dice.choice([dice.randrange(-1, len(vocabulary.pieces) + 2), dice.randrange(9)]) for _ in range(12)]
        detokenizer = Detokenizer(vocabulary, skip)
        shown, rest = "", list(tokens)
        while rest:
            n = dice.randint(0, 4)
            shown += detokenizer.feed(rest[:n])
            rest = rest[n:]
        assert shown + detokenizer.flush() == whole(vocabulary, tokens, skip)


# --- the window, for models whose table is not exact ---------------------------------------------------------------


async def window_text(tokens: list[int], step: int, decode) -> tuple[str, int, int]:
    """Returns all deltas joined, the longest list that was decoded, and the number of decodes."""
    window, shown, decoded = WindowDetokenizer(), "", []

    async def in_engine(ids, skip_special_tokens):
        decoded.append(len(ids))
        return decode(ids)

    for i in range(0, len(tokens), step):
        shown += await window.feed(tokens[i : i + step], i + step >= len(tokens), True, in_engine)
    return shown, max(decoded), len(decoded)


@pytest.mark.parametrize("step", [1, 3, 40])
async def test_the_window_gives_the_whole_text(step):
    def decode(ids):
        return whole(SPM, ids, True)

    dice = random.Random(3)
    for _ in range(20):
        words = [dice.choice(([2], [3], [4], [5], [6], [0], as_bytes("🙂"), as_bytes("ü"))) for _ in range(150)]
        tokens = [t for word in words for t in word]
        shown, longest, decodes = await window_text(tokens, step, decode)
        assert shown == decode(tokens)
        assert longest <= 128 + step + 8
        assert decodes <= len(tokens) // step * 1.1 + 3


async def test_the_window_stays_bounded_when_nothing_becomes_a_character():
    shown, longest, _ = await window_text([BYTE + 0xFF] * 1000, 1, lambda ids: whole(SPM, ids, True))
    assert longest <= 130
    assert set(shown) == {"\ufffd"}


async def test_the_window_holds_a_space_that_clean_up_may_take_back():
    def clean(ids):
        text = whole(VOCABULARY, ids, True)
        for mark in ".,?!":
            text = text.replace(f" {mark}", mark)
        return text.replace(" n't", "n't")

    tokens = [2, *as_bytes(" . do n't , x ! ")]
    assert (await window_text(tokens, 1, clean))[0] == clean(tokens)


async def test_a_decode_that_takes_back_what_was_shown_loses_and_doubles_nothing():
    texts = iter(["ab", "aX", "aXY"])
    assert (await window_text([1, 2, 3], 1, lambda ids: next(texts)))[0] == "abXY"
