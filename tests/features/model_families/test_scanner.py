"""The scanner reads the same however the text is cut, holds back as little as possible, and never reads twice."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from lean_ovms.features.model_families.scanner import MAX_NAME, Scanner, Sink, Steps, Tags

TAGS = Tags(["<tool_call>", "<think>", "[TOOL_CALLS]"])
Reading = Callable[[Scanner, Sink], Steps[object]]


def read(reading: Reading, chunks: list[str]) -> tuple[object, str, str]:
    """Returns the result, the text that was passed on, and the text that was left unread."""
    scanner = Scanner()
    out: list[str] = []
    steps = reading(scanner, out.append)
    rest = list(chunks)
    while True:
        try:
            next(steps)
        except StopIteration as stop:
            return stop.value, "".join(out), scanner.text[scanner.pos :] + "".join(rest)
        if rest:
            scanner.feed(rest.pop(0))
        else:
            scanner.ended = True


def read_everyhow(reading: Reading, text: str) -> tuple[object, str, str]:
    whole = read(reading, [text])
    assert read(reading, list(text)) == whole
    assert all(read(reading, [text[:at], text[at:]]) == whole for at in range(1, len(text)))
    return whole


@pytest.mark.parametrize(
    ("text", "tag", "before", "rest"),
    [
        ("ab<think>c", "<think>", "ab", "c"),
        ("<<thin<think>", "<think>", "<<thin", ""),
        ("a[TOOL_CALL [TOOL_CALLS]x", "[TOOL_CALLS]", "a[TOOL_CALL ", "x"),
        ("no tag <too", "", "no tag <too", ""),
        ("", "", "", ""),
    ],
)
def test_until_finds_the_first_tag_in_any_cut(text: str, tag: str, before: str, rest: str) -> None:
    assert read_everyhow(lambda s, sink: s.until(TAGS, sink), text) == (tag, before, rest)


def test_only_a_tail_that_may_become_a_tag_is_held_back() -> None:
    scanner = Scanner()
    out: list[str] = []
    steps = scanner.until(TAGS, out.append)
    seen = []
    for chunk in ["a <", "b <t", "h", "x", "[", "]", "<thi", "nk>"]:
        scanner.feed(chunk)
        next(steps, None)
        seen.append("".join(out))
        out.clear()
    assert seen == ["a ", "<b ", "", "<thx", "", "[]", "", ""]


def test_no_tag_may_begin_another_and_without_tags_everything_is_text() -> None:
    with pytest.raises(AssertionError):
        Tags(["<a", "<a>"])
    assert read_everyhow(lambda s, sink: s.until(Tags([]), sink), "a<b") == ("", "a<b", "")


WHOLE = [
    '{"a": [1, {"b": "}]\\"{"}], "c": null}',
    "[]",
    "{}",
    '"a\\\\"',
    '{"é": "\\u00e9\\uD83D\\uDE00😀"}',
    "-1.5e+3",
    "true",
]
BROKEN = [
    ('{"a": 1', '{"a": 1', ""),
    ('{"a": <x', '{"a": ', "<x"),
    ('{"a": 1]}', '{"a": 1', "]}"),
    ('{"a": "b', '{"a": "b', ""),
    ('{"a": "b\\', '{"a": "b\\', ""),
    ("<", "", "<"),
    ("", "", ""),
]


def test_json_values_pass_as_they_are_and_broken_ones_stop_where_they_break() -> None:
    for text in WHOLE:
        assert read_everyhow(lambda s, sink: s.json_value(sink), text + " ,x") == (True, text, " ,x")
    for text, handed, rest in BROKEN:
        assert read_everyhow(lambda s, sink: s.json_value(sink), text) == (False, handed, rest)


@pytest.mark.parametrize(
    ("text", "means"),
    [
        ('"a\nb\t\x01"', "a\nb\t\x01"),
        ('"a\\d"', "a\\d"),
        ('"\\u12x"', "\\u12x"),
        ('"\\\\u12"', "\\u12"),
        ('"\\\'"', "\\'"),
    ],
)
def test_strings_are_made_valid(text: str, means: str) -> None:
    done, handed, _ = read_everyhow(lambda s, sink: s.json_value(sink), text)
    assert done
    assert json.loads(handed) == means


def test_no_more_is_held_back_after_a_comma_than_a_few_blanks() -> None:
    scanner = Scanner()
    out: list[str] = []
    steps = scanner.json_value(out.append)
    for chunk in ("[1,", *" " * (MAX_NAME + 44)):
        scanner.feed(chunk)
        next(steps)
    assert "".join(out) == "[1," + " " * (MAX_NAME + 44)
    few, many = ("[1," + " " * count + "]" for count in (MAX_NAME - 1, MAX_NAME))
    assert read_everyhow(Scanner.json_value, few)[1] == few.replace(",", "")
    assert read_everyhow(Scanner.json_value, many)[1] == many


def test_deep_nesting_needs_no_recursion() -> None:
    text = "[" * 20_000 + "]" * 20_000
    assert read(lambda s, sink: s.json_value(sink), [text]) == (True, text, "")


def test_a_record_returns_what_was_read_over_any_number_of_chunks() -> None:
    def reading(scanner: Scanner, sink: Sink) -> Steps[object]:
        scanner.record("<x>")
        yield from scanner.json_value(sink)
        return scanner.recorded(), scanner.recorded()

    assert read_everyhow(reading, '{"a": "b"}c')[0] == ('<x>{"a": "b"}', "")


def test_a_literal_is_read_whole_or_not_at_all_and_blanks_up_to_the_next_character() -> None:
    for text, found, rest in (("abc", True, "c"), ("ac", False, "ac"), ("a", False, "a")):
        assert read_everyhow(lambda s, _: s.literal("ab"), text) == (found, "", rest)
    assert read_everyhow(lambda s, _: s.space(), " \n\t x") == ("x", "", "x")
    assert read_everyhow(lambda s, _: s.space(), " \n") == ("", "", "")
    assert read_everyhow(lambda s, _: s.peek(), " x") == (" ", "", " x")
