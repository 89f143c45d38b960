"""How much of the package one streamed chat loads and enters: figures that only fall."""

from __future__ import annotations

import pytest

from tools.chat_path import measure, numbers

MOST_LOADED = 218
"""Files. Who needs more for a plain chat imports them where they are used first, or lowers what others load."""
MOST_ENTERED = 86
"""Files, four of them for what happens at times: the access line, and looks at files."""


@pytest.mark.slow
def test_a_chat_loads_and_enters_no_more_files_than_before() -> None:
    counted = numbers(measure())
    assert counted["files that a streamed chat loads"] <= MOST_LOADED
    assert counted["files that it enters"] <= MOST_ENTERED
