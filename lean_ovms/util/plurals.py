"""Numbers with their nouns, for people."""

from __future__ import annotations


def counted(count: int, one: str, many: str = "") -> str:
    """Returns a number with what it counts: "1 request", "2 requests".

    Args:
        count: The number.
        one: What follows a 1: a noun, and a verb if there is one ("request is waiting").
        many: What follows any other number; "" appends an s to `one`.
    """
    return f"{count} {one if count == 1 else many or one + 's'}"


def requests_waiting(count: int, whose: str = "") -> str:
    """Returns what a client reads that finds a full queue, such as "1 request is waiting already".

    Args:
        count: The requests in the queue.
        whose: A word on whose they are, such as " of this client".
    """
    return counted(count, f"request{whose} is waiting already", f"requests{whose} are waiting already")
