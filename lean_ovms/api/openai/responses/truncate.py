"""truncation auto: an input that is too long loses its oldest turns until it fits."""

from __future__ import annotations

from ....types import Json

SHARE = 8
"""At most an eighth of the turns goes at a time: few attempts with long conversations, little lost beyond need."""

_INSTRUCTING = ("system", "developer")


def shorter(items: list[Json]) -> list[Json]:
    """The items without the oldest turns; the same if there is but one. Instructions stay.

    A turn is a user's message and all that follows it, so that no call is torn from its output.
    """
    starts = [place for place, item in enumerate(items) if item.get("role") == "user"]
    if len(starts) < 2:
        return items
    end = starts[max(1, len(starts) // SHARE)]
    return [item for item in items[:end] if item.get("role") in _INSTRUCTING] + items[end:]
