"""Tokens become text, whatever the cuts: detokenizers, clean-up of spaces, stop strings."""

from __future__ import annotations

import random

import pytest

from lean_ovms.text.decode.detokenizer import MATCH, CleanUp, Detokenizer, WindowDetokenizer
from lean_ovms.text.decode.stop_strings import StopMatcher
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


def cleaned(text):
    return MATCH.sub(lambda match: match[0].strip(" "), text)


def streamed(parts):
    filter_ = CleanUp()
    return "".join([filter_.feed(part) for part in parts]) + filter_.flush()


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        ("Hello , world .", "Hello, world."),
        ("a \\ b", "a\\ b"),
        ("do n't I 'm ' x ' y ''s 've 're", "don't I'm'x'y ''s've're"),
        ("a  . b ! ? '", "a . b!? '"),
        ("x ' ' y", "x'' y"),
        (" ' .", "'."),
        ("é .", "é."),
    ],
)
def test_what_openvino_tokenizers_prints(text, clean):
    """Texts and results are from a converted tokenizer, openvino_tokenizers 2026.4.1."""
    assert cleaned(text) == clean
    assert streamed([text]) == clean
    assert streamed(text) == clean


def test_only_a_space_and_what_may_follow_it_waits():
    filter_ = CleanUp()
    assert [filter_.feed(part) for part in ("do", " n", "ot", " it", " ", "'", "r", "x", "!")] == [
        "do", "", " not", " it", "", "", "", " 'rx", "!"
    ]  # fmt: skip
    assert filter_.flush() == ""


def test_any_cut_gives_the_cleaned_text():
    dice = random.Random(5)
    for _ in range(5000):
        text = "".join(dice.choices(" '.nt!msrvex", weights=[6, 4, *[1] * 10], k=dice.randint(0, 12)))
        parts, at = [], 0
        while at < len(text):
            end = dice.randint(at, len(text))
            parts.append(text[at:end])
            at = end
        assert streamed(parts) == cleaned(text), parts


def run(parts, stop, include=False):
    """Returns everything that is shown, and the stop string that was found."""
    matcher = StopMatcher(tuple(stop), include)
    shown, found = "", None
    for part in parts:
        text, match = matcher.feed(part)
        assert found is None or (text, match) == ("", None), "nothing comes after a find"
        shown, found = shown + text, found or match
    return shown + matcher.flush(), found


def by_the_rule(text, stop, include):
    """Searches by the definition, slowly: the first end of a stop string; of those with the same end, the longest."""
    for end in range(1, len(text) + 1):
        found = max((s for s in stop if s and text[:end].endswith(s)), key=len, default=None)
        if found:
            return text[: end if include else end - len(found)], found
    return text, None


def cuts(dice, text):
    parts, at = [], 0
    while at < len(text):
        end = dice.randint(at, len(text))
        parts.append(text[at:end])
        at = end
    return parts


@pytest.mark.parametrize(
    ("text", "stop", "shown", "found"),
    [
        ("Hello", [], "Hello", None),
        ("Hello", ["lo"], "Hel", "lo"),
        ("Hello", ["ll", "lo"], "He", "ll"),
        ("Hello", ["lo", "ll"], "He", "ll"),
        ("abcd", ["abcd", "bc"], "a", "bc"),
        ("xab", ["b", "ab"], "x", "ab"),
        ("aab", ["ab"], "a", "ab"),
        ("abab!", ["abab!", "abac"], "", "abab!"),
        ("a\n\nb", ["\n\n"], "a", "\n\n"),
        ("日本語です", ["です"], "日本語", "です"),
        ("Hello", ["Hello", "Hello!"], "", "Hello"),
        ("Hello", ["Hello!"], "Hello", None),
        ("[a]^-\\", ["^-\\"], "[a]", "^-\\"),
        ("Hello", ["", "lo"], "Hel", "lo"),
    ],
)
def test_the_stop_string_that_is_complete_first_ends_the_text(text, stop, shown, found):
    assert run([text], stop) == (shown, found)
    assert run(list(text), stop) == (shown, found)


def test_included_the_stop_string_stays_and_nothing_is_held():
    matcher = StopMatcher(("stop!",), True)
    assert matcher.feed("a st") == ("a st", None)
    assert matcher.feed("op!b") == ("op!", "stop!")
    assert matcher.feed("c") == ("", None)
    assert matcher.flush() == ""


def test_only_what_may_become_a_stop_string_is_held():
    matcher = StopMatcher(("###", "END"), False)
    assert matcher.feed("a#") == ("a", None)
    assert matcher.feed("b##") == ("#b", None)
    assert matcher.feed("E") == ("##", None)
    assert matcher.feed("N") == ("", None)
    assert matcher.feed(" ") == ("EN ", None)
    assert matcher.feed("x") == ("x", None)


def test_what_is_held_comes_at_the_end():
    matcher = StopMatcher(("stop",), False)
    assert matcher.feed("a sto") == ("a ", None)
    assert matcher.flush() == "sto"
    assert matcher.flush() == ""


@pytest.mark.parametrize("include", [False, True])
@pytest.mark.slow
def test_any_cut_gives_the_result_of_the_rule(include):
    dice = random.Random(1)
    for _ in range(4000):
        stop = ["".join(dice.choices("abc", k=dice.randint(1, 4))) for _ in range(dice.randint(0, 4))]
        text = "".join(dice.choices("abcd", k=dice.randint(0, 14)))
        parts = cuts(dice, text)
        assert run(parts, stop, include) == by_the_rule(text, stop, include), (parts, stop)
