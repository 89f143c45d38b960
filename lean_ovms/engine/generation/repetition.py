"""Whether a text has begun to repeat itself: vLLM's repetition_detection (check_sequence_repetition)."""

from __future__ import annotations

from collections.abc import Sequence


def repeats(tokens: Sequence[int], end: int, shortest: int, longest: int, times: int, begin: int = 0) -> bool:
    """Returns whether tokens[begin:end] ends with `shortest` to `longest` tokens that occur `times` times in a row."""
    for size in range(shortest, min(longest, (end - begin) // times) + 1):
        first = end - size * times
        if tokens[end - 1] == tokens[end - 1 - size] and tokens[first : end - size] == tokens[first + size : end]:
            return True
    return False
