"""Stop strings: the result depends on the text, not on its cuts, and no part of a stop string is shown."""

from __future__ import annotations

import random

import pytest

from lean_ovms.text.decode.stop_strings import StopMatcher


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
