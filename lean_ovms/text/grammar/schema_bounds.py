"""Bounds of two JSON schemas of one type compared: what a grammar of one writes, and what is valid by the other."""

from __future__ import annotations

from ...types import Json
from .schema_keywords import KIND_OF_KEYWORD, count, has_no_effect, number_bounds, properties_of
from .strings import format_of

MAX_LENGTH = 256
MAX_ITEMS = 64
"""Longer bounds are not enforced by grammars: they take seconds to compile and milliseconds a token."""
_ELSEWHERE = {
    "object": ("properties", "required", "additionalProperties"),
    "array": ("items", "prefixItems", "additionalItems"),
}
Span = tuple[float, float]


def apart(kind: str, one: Json, other: Json) -> bool:
    """Whether bounds or formats alone exclude that something written by `one` is valid by `other`."""
    if kind in ("number", "integer"):
        return _numbers_apart(_written_numbers(kind, one), other)
    words = {"string": "Length", "array": "Items", "object": "Properties"}.get(kind)
    if words is None:
        return False
    if kind == "string" and _other_format(one, other):
        return True
    least, most = _written_sizes(kind, one)
    low, high = count(other, f"min{words}") or 0, count(other, f"max{words}")
    return most < low or (high is not None and least > high)


def contains_bounds(kind: str, other: Json, one: Json) -> bool:
    """Whether everything written by `one` is within the bounds of `other`; False for keywords that are none.

    What is inside of objects and arrays is not compared here.
    """
    for word in other:
        mine = word in KIND_OF_KEYWORD.get("number" if kind == "integer" else kind, ()) or word == "format"
        elsewhere = any(word in words for words in KIND_OF_KEYWORD.values()) and not mine
        if not elsewhere and word not in _ELSEWHERE.get(kind, ()) and not _satisfied(kind, word, other, one):
            return False
    return True


def _satisfied(kind: str, word: str, other: Json, one: Json) -> bool:
    if has_no_effect(word, other[word]) and (word != "multipleOf" or kind == "integer"):
        return True
    if word == "format":
        return kind != "string"
    if word.startswith(("min", "max")) and kind in ("string", "array"):
        least, most = _written_sizes(kind, one)
        bound = count(other, word) or 0
        return least >= bound if word.startswith("min") else most <= bound
    if kind in ("number", "integer") and word in ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"):
        low, high = _written_numbers(kind, one)
        bounds = number_bounds({word: other[word]}, 0)
        if word.endswith("inimum"):
            return bounds[0] is not None and (low > bounds[0] or (low == bounds[0] and word == "minimum"))
        return bounds[1] is not None and (high < bounds[1] or (high == bounds[1] and word == "maximum"))
    return False


def _written_numbers(kind: str, one: Json) -> Span:
    low, high, _, _ = number_bounds(one, 1 if kind == "integer" else 0)
    return (float("-inf") if low is None else low, float("inf") if high is None else high)


def _numbers_apart(written: Span, other: Json) -> bool:
    low, high, above, below = number_bounds(other, 0)
    if low is not None and (written[1] < low or (written[1] == low == above)):
        return True
    return high is not None and (written[0] > high or (written[0] == high == below))


def _written_sizes(kind: str, one: Json) -> Span:
    """The enforced bounds of a string's or array's length, or of the number of an object's properties."""
    if kind == "object":
        closed = not one.get("additionalProperties", "properties" not in one)
        named, needed = properties_of(one)
        return len(set(needed)), len({*named, *needed}) if closed else float("inf")
    if kind == "string" and ("pattern" in one or _grammar_of_format(one)):
        return 0, float("inf")
    word, limit = ("Length", MAX_LENGTH) if kind == "string" else ("Items", MAX_ITEMS)
    least, most = count(one, f"min{word}") or 0, count(one, f"max{word}")
    return (least if least <= limit else 0), (most if most is not None and most <= limit else float("inf"))


def _grammar_of_format(schema: Json) -> str | None:
    kind = schema.get("format")
    return format_of(kind) if isinstance(kind, str) else None


def _other_format(one: Json, other: Json) -> bool:
    """Both have a format that grammars know, and not the same. No text has two of these."""
    mine, theirs = _grammar_of_format(one), _grammar_of_format(other)
    return mine is not None and theirs is not None and mine != theirs and "pattern" not in one
