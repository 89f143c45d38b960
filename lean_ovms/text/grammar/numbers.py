"""Numbers within bounds as grammars: decimal text, digit by digit. Knows no schemas.

Lengths are limited, so that a model cannot write digits without end.
"""

from __future__ import annotations

import math

from .ebnf import branches, literal

DIGITS = 16
"""Most digits of an integer without bounds; every double holds the first 15."""
INTEGER = f'"-"? ("0" | [1-9] [0-9]{{0,{DIGITS - 1}}})'
FRACTION = f'"." [0-9]{{1,{DIGITS}}}'
NUMBER = f"{INTEGER} ({FRACTION})? ([eE] [+-]? [0-9]{{1,2}})?"
ANY = "[0-9]"
Digits = list[str]
"""A sequence of expressions, one a digit."""
_STEPS = 10_000
"""Steps of a unit, where no integer lies between the bounds."""


def integer(low: float | None, high: float | None) -> str | None:
    """An integer with inclusive bounds; None if there is none."""
    if low is None and high is None:
        return INTEGER
    found = _whole(low, high)
    return branches(found) if found else None


def number(low: float | None, high: float | None) -> str | None:
    """A number with inclusive bounds, exponents only without bounds; None if nothing fits."""
    if low is None and high is None:
        return NUMBER
    # k.f lies between k and k + 1, and -k.f between -k - 1 and -k.
    above = _span(None if low is None else math.ceil(low), None if high is None else math.floor(high) - 1)
    below = _span(None if high is None else -math.floor(high), None if low is None else -math.ceil(low) - 1)
    broken = [[*digits, FRACTION] for digits in above] + [['"-"', *digits, FRACTION] for digits in below]
    found = _whole(low, high) + broken
    return branches(found) if found else _between_integers(low, high)


def _whole(low: float | None, high: float | None) -> list[Digits]:
    first = None if low is None else math.ceil(low)
    last = None if high is None else math.floor(high)
    negative = [['"-"', *digits] for digits in _negated(first, last)]
    return negative + (_span(first, last) if last is None or last >= 0 else [])


def _negated(first: int | None, last: int | None) -> list[Digits]:
    """The negative integers from first to last, without their sign."""
    if first is not None and first >= 0:
        return []
    return _span(1 if last is None or last >= 0 else -last, None if first is None else -first)


def _span(low: int | None, high: int | None) -> list[Digits]:
    """The non-negative integers from low to high."""
    low = max(0, low or 0)
    if high is None:
        high = 10 ** max(DIGITS, len(str(low)) + 1) - 1
    found = []
    while low <= high:
        top = min(high, 10 ** len(str(low)) - 1)
        found += _same_length(str(low), str(top))
        low = top + 1
    return found


def _same_length(low: str, high: str) -> list[Digits]:
    """Digit strings from low to high, both of one length."""
    rest = len(low) - 1
    if low[1:] == "0" * rest and high[1:] == "9" * rest:
        return [[_digits(low[0], high[0]), *[ANY] * rest]]
    if low[0] == high[0]:
        return [[literal(low[0]), *tail] for tail in _same_length(low[1:], high[1:])]
    found = [[literal(low[0]), *tail] for tail in _same_length(low[1:], "9" * rest)]
    if int(high[0]) - int(low[0]) > 1:
        found.append([_digits(str(int(low[0]) + 1), str(int(high[0]) - 1)), *[ANY] * rest])
    return found + [[literal(high[0]), *tail] for tail in _same_length("0" * rest, high[1:])]


def _digits(low: str, high: str) -> str:
    return literal(low) if low == high else f"[{low}-{high}]"


def _between_integers(low: float | None, high: float | None) -> str | None:
    """A number between bounds that have no whole number between them, four digits fine."""
    if low is None or high is None or low > high:
        return None
    sign = [literal("-")] if high < 0 else []
    smaller, larger = sorted((abs(low), abs(high)))
    unit = math.floor(smaller)
    first, last = math.ceil((smaller - unit) * _STEPS), math.floor((larger - unit) * _STEPS)
    if not 0 <= first <= last < _STEPS:
        return None
    tails = _same_length(f"{first:04d}", f"{last:04d}")
    return branches([[*sign, literal(f"{unit}."), *tail] for tail in tails])
