"""Replaces unpaired surrogates in JSON, which are not valid Unicode, by U+FFFD.

Programs in JavaScript produce one when they cut a text inside an emoji, as agents do with the results of tools.
"""

from __future__ import annotations

import re

MOST = 1000
"""The most surrogates that are replaced, each in an iteration of a Python loop; JSON with more is refused."""
PIECE_BYTES = 1 << 18
"""The number of bytes that are searched in one call, during which no other thread runs: up to 5 ms (2026-11)."""
_LONGEST = len(rb"\ud83d\ude00")
_WHOLE = re.compile(
    rb"[^\\]*(?:\\(?:u(?:[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|(?![dD][89a-fA-F])[0-9a-fA-F]{4})"
    rb"|[^u])[^\\]*)*",
    re.DOTALL,
)
"""Matches text up to an escape that is an unpaired surrogate, or up to the end."""
_HALF = re.compile(rb"\\u[dD][89a-fA-F][0-9a-fA-F]{2}")


def replaced(data: bytes) -> bytes:
    """Returns the JSON with up to MOST unpaired surrogates replaced by U+FFFD."""
    found, place, halves = [], 0, 0
    while place < len(data):
        limit = place + PIECE_BYTES
        whole = _WHOLE.match(data, place, limit)
        assert whole is not None
        found.append(whole[0])
        place = whole.end()
        if place > limit - _LONGEST and limit < len(data):
            continue  # an escape may have been cut off there
        if place < len(data):
            half = _HALF.match(data, place)
            if half is None or halves == MOST:
                found.append(data[place:])
                break
            halves += 1
            found.append(rb"\ufffd")
            place = half.end()
    return b"".join(found)
