"""The padded length of texts that are computed alone, one after the other.

openvino prepares every layer anew when a batch has another shape than the one before. For all-MiniLM-L6-v2 on two cores
that takes as long as CHANGE_TOKENS tokens of padding: 2.2 of 9.6 ms for 32 tokens (2026-11). So a shorter text has the
length of the one before it, until its padding has cost as much as the change would.
"""

from __future__ import annotations

CHANGE_TOKENS = 32


class LoneLength:
    """The length of the last lone text, and how many tokens longer those after it became by it."""

    def __init__(self) -> None:
        self._last = self._wasted = 0

    def size(self, needed: int) -> int:
        """The padded length of the next one, of which `needed` is the least."""
        wasted = self._last - needed
        if wasted < 0 or self._wasted + wasted > CHANGE_TOKENS:
            self._last, self._wasted = needed, 0
        else:
            self._wasted = self._wasted + wasted if wasted else 0
        return self._last
