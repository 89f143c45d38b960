"""How much of the package one streamed chat loads and enters; the limits may only be lowered."""

from __future__ import annotations

import pytest

from tools.chat_path import measure, numbers

MOST_LOADED = 190
"""The most files. Code that a plain chat does not need is imported where it is used."""
MOST_ENTERED = 75
"""The most files. Four of them are not entered in every run: those that write the access line or look at files."""


@pytest.mark.slow
def test_a_chat_loads_and_enters_no_more_files_than_before() -> None:
    counted = numbers(measure())
    assert counted["files that a streamed chat loads"] <= MOST_LOADED
    assert counted["files that it enters"] <= MOST_ENTERED
