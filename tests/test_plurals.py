"""Numbers with their nouns."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from lean_ovms.errors import counted, requests_waiting

ROOT = Path(__file__).parents[1]
FIXED = re.compile(r"(\{[^{}]*)\} (?:requests|messages|images|blocks|prompts|errors)\b")
"""Matches a number in an f-string in front of a noun that is right for all numbers but 1."""


@pytest.mark.parametrize(
    ("count", "words", "expected"),
    [
        (0, ("request",), "0 requests"),
        (1, ("request",), "1 request"),
        (2, ("request",), "2 requests"),
        (1, ("query is", "queries are"), "1 query is"),
        (2, ("query is", "queries are"), "2 queries are"),
    ],
)
def test_a_noun_goes_with_its_number(count: int, words: tuple[str, ...], expected: str) -> None:
    assert counted(count, *words) == expected


def test_a_full_queue_of_one() -> None:
    assert requests_waiting(1) == "1 request is already waiting"
    assert requests_waiting(2, " of this client") == "2 requests of this client are already waiting"


def test_messages_count_what_can_be_one() -> None:
    """Sentences with a number and a noun use `counted`."""
    assert not [
        f"{path.relative_to(ROOT)}: {found[0]}"
        for path in (ROOT / "lean_ovms").rglob("*.py")
        for found in FIXED.finditer(path.read_text("utf-8"))
        if re.search("[a-z]", found[1])  # not a constant
    ]
