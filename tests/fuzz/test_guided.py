"""Replays the corpus of guided fuzzing; the fuzzer itself runs in CI (guided.py)."""

from __future__ import annotations

import pytest

from tests.fuzz.targets import CORPUS, TARGETS, seeds


@pytest.mark.parametrize("target", TARGETS)
def test_the_corpus_breaks_nothing(target: str) -> None:
    files = sorted((CORPUS / target).iterdir())
    assert len(files) >= 5
    for data in [*seeds(target), *(file.read_bytes() for file in files)]:
        TARGETS[target](data)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.slow
def test_any_short_input_breaks_nothing(target: str) -> None:
    for first in range(256):
        for data in (b"", bytes([first]), bytes([first, 3]), bytes([first, 3]) + b"\r\n\x00\xff<{["):
            TARGETS[target](data)
