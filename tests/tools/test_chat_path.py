"""How much of the package one streamed chat loads and enters, and how large the core is; the limits only fall."""

from __future__ import annotations

import pytest

from tools.chat_path import measure, numbers

MOST_LOADED = 190
"""The most files. Code that a plain chat does not need is imported where it is used."""
MOST_ENTERED = 75
"""The most files. Three of them are not entered in every run: those that write the access line or look at files."""
MOST_CORE_LINES = 30_000
"""The most lines of the core. What only features use belongs to the feature that owns the subject, if there is one."""


@pytest.mark.slow
def test_a_chat_loads_and_enters_no_more_files_than_before() -> None:
    counted = numbers(measure())
    assert counted["files that a streamed chat loads"] <= MOST_LOADED
    assert counted["files that it enters"] <= MOST_ENTERED
    assert counted["lines of the core"] <= MOST_CORE_LINES
