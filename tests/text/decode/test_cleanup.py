"""Clean-up of spaces in a stream: the same as the regular expression on the whole text, wherever it is cut."""

from __future__ import annotations

import random

import pytest

from lean_ovms.text.decode.detokenizer import MATCH, CleanUp


def whole(text):
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
    assert whole(text) == clean
    assert streamed([text]) == clean
    assert streamed(text) == clean


def test_only_a_space_and_what_may_follow_it_waits():
    filter_ = CleanUp()
    assert [filter_.feed(part) for part in ("do", " n", "ot", " it", " ", "'", "r", "x", "!")] == [
        "do", "", " not", " it", "", "", "", " 'rx", "!"
    ]  # fmt: skip
    assert filter_.flush() == ""


def test_any_cut_gives_the_whole_text():
    dice = random.Random(5)
    for _ in range(5000):
        text = "".join(dice.choices(" '.nt!msrvex", weights=[6, 4, *[1] * 10], k=dice.randint(0, 12)))
        parts, at = [], 0
        while at < len(text):
            end = dice.randint(at, len(text))
            parts.append(text[at:end])
            at = end
        assert streamed(parts) == whole(text), parts
