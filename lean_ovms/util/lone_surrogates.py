"""Halves of surrogate pairs in JSON, which is no Unicode: U+FFFD takes their place.

Programs in JavaScript write one where they have cut a text inside an emoji, as agents cut what a tool returns.
"""

from __future__ import annotations

import re

MOST = 1000
"""Halves that are replaced; what has more is refused, since finding each takes a turn of a loop in Python."""
PIECE_BYTES = 1 << 18
"""Bytes that are searched in one call, during which no other thread runs: up to 5 ms (2026-11)."""
_LONGEST = len(rb"\ud83d\ude00")
_WHOLE = re.compile(
    rb"[^\\]*(?:\\(?:u(?:[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|(?![dD][89a-fA-F])[0-9a-fA-F]{4})"
    rb"|[^u])[^\\]*)*",
    re.DOTALL,
)
"""Matches text up to an escape that is half of a pair, or none."""
_HALF = re.compile(rb"\\u[dD][89a-fA-F][0-9a-fA-F]{2}")


def replaced(data: bytes) -> bytes:
    """Returns the JSON with U+FFFD in place of up to MOST halves of surrogate pairs."""
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
