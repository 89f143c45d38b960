"""Limits on the text of a grammar: the first and cheapest check. Pure, linear in its length.

They refuse grammars that would crash a process (10,000 nested brackets overflow xgrammar's stack) and those that cost
time only after they were compiled (a repetition of 100,000 takes 150 ms for every token). Everything else is found out
by compiling in a process that can be killed; so these bounds are wide.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import orjson

from ...errors import GrammarInvalid, GrammarTooComplex
from .grammar_overlap import overlap

MAX_REPEAT = 1 << 60
"""Upper bound of the product of nested repetitions; larger ones are not told apart."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GrammarBounds:
    """Inclusive. bytes: of the whole text. nesting: brackets of any kind. repetition: of all counted repetitions in
    an expression, nested ones multiplied. overlap: of those, places at which one can begin (grammar_overlap). count:
    minLength and the like. properties, choices: in one schema. multiple: of multipleOf, without its factors 2 and 5."""

    bytes: int = 65536
    nesting: int = 64
    repetition: int = 20000
    overlap: int = 128
    count: int = 10_000
    properties: int = 500
    choices: int = 5000
    multiple: int = 10_000


def check(text: str, bounds: GrammarBounds) -> Any:
    """Returns the parsed structural tag. Raises GrammarInvalid and GrammarTooComplex."""
    size = len(text.encode("utf-8", "surrogatepass"))
    if size > bounds.bytes:
        raise too_complex(f"it has {size} bytes, the limit is {bounds.bytes}")
    if nesting(text) > bounds.nesting:
        raise too_complex(f"it is nested deeper than {bounds.nesting} levels")
    try:
        tag = orjson.loads(text)
    except ValueError:
        raise GrammarInvalid("The grammar is not valid JSON") from None
    for key, value in members(tag):
        _check_member(key, value, bounds)
    return tag


def too_complex(why: str) -> GrammarTooComplex:
    """Returns the error for a grammar that exceeds a limit."""
    return GrammarTooComplex(f"The grammar is too complex for this server: {why}")


def nesting(text: str) -> int:
    """Returns the deepest level of brackets outside JSON strings."""
    depth = deepest = 0
    quoted = escaped = False
    for char in text:
        if quoted:
            quoted = escaped or char != '"'
            escaped = not escaped and char == "\\"
        elif char == '"':
            quoted, escaped = True, False
        elif char in "[{":
            depth += 1
            deepest = max(deepest, depth)
        elif char in "]}":
            depth -= 1
    return deepest


def members(value: Any) -> Iterator[tuple[str, Any]]:
    """Yields every key and value of every object inside, without recursion."""
    todo = [value]
    while todo:
        item = todo.pop()
        if isinstance(item, dict):
            yield from item.items()
            todo += item.values()
        elif isinstance(item, list):
            todo += item


_COUNTS = frozenset(("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties"))


def _check_member(key: str, value: Any, bounds: GrammarBounds) -> None:
    if key in ("properties", "patternProperties", "$defs", "definitions") and isinstance(value, dict):
        if len(value) > bounds.properties:
            raise too_complex(f"{len(value)} {key}, the limit is {bounds.properties}")
    elif key == "enum" and isinstance(value, list):
        if len(value) > bounds.choices:
            raise too_complex(f"an enum of {len(value)}, the limit is {bounds.choices}")
    elif key in _COUNTS and isinstance(value, (int, float)):
        if value > bounds.count:
            raise too_complex(f"{key} is {value:g}, the limit is {bounds.count}")
    elif key == "multipleOf" and isinstance(value, int | float):
        if _odd_part(value) > bounds.multiple:
            raise too_complex(f"multipleOf {value:g} has too many digits")
    elif key in ("pattern", "grammar") and isinstance(value, str):
        _check_expression(value, key == "grammar", bounds)


def _odd_part(value: float) -> int:
    """Returns a number without point, sign, and factors 2 and 5: as many states has what tells its multiples."""
    digits = f"{abs(value):.10f}".replace(".", "")
    number = int(digits) if digits.isdigit() else 0
    for factor in (2, 5):
        while number and number % factor == 0:
            number //= factor
    return number


def _check_expression(text: str, quotes: bool, bounds: GrammarBounds) -> None:
    depth, weight = expression(text, quotes=quotes)
    if depth > bounds.nesting:
        raise too_complex(f"its groups are nested deeper than {bounds.nesting} levels")
    if weight > bounds.repetition:
        raise too_complex(f"its counted repetitions come to more than {bounds.repetition}")
    if overlap(text, quotes=quotes) > bounds.overlap:
        raise too_complex(f"it repeats what may be empty more than {bounds.overlap} times")


def expression(text: str, *, quotes: bool) -> tuple[int, int]:
    """Returns (depth of groups, cost of counted repetitions) of a regular expression or an EBNF grammar.

    quotes: text between double quotes is a literal, as in EBNF. The cost of a repetition is its bound times the cost of
    the repeated item, that of a group the sum over its items.
    """
    groups: list[list[int]] = [[0, 1]]  # of each open group: its repetitions' cost, the last item's
    deepest = position = 0
    while position < len(text):
        char = text[position]
        position += 1
        group = groups[-1]
        if char == "(":
            groups.append([0, 1])
            deepest = max(deepest, len(groups) - 1)
        elif char == ")" and len(groups) > 1:
            closed = groups.pop()
            groups[-1][1] = max(1, closed[0])
            groups[-1][0] = min(MAX_REPEAT, groups[-1][0] + closed[0])
        elif char == "[" or (quotes and char == '"'):
            position = _after(text, position, "]" if char == "[" else '"')
            group[1] = 1
        elif char == "{":
            count, position = _count(text, position)
            group[0] = min(MAX_REPEAT, group[0] + count * group[1])
        else:
            position += char == "\\"
            group[1] = 1
    return deepest, min(MAX_REPEAT, sum(group[0] for group in groups))


def _after(text: str, position: int, end: str) -> int:
    """Returns the position after the next `end` that is not escaped."""
    while position < len(text) and text[position] != end:
        position += 2 if text[position] == "\\" else 1
    return position + 1


def _count(text: str, position: int) -> tuple[int, int]:
    """Returns (largest number, position after "}") of a repetition after its "{"; 0 if it is none."""
    end = text.find("}", position, position + 64)
    if end < 0:
        digits = text[position : position + 1].isdigit()
        return (MAX_REPEAT if digits else 0), position
    numbers = [part.strip() for part in text[position:end].split(",")]
    if not all(part == "" or (part.isascii() and part.isdigit()) for part in numbers):
        return 0, position
    return max((min(MAX_REPEAT, int(part)) for part in numbers if part), default=0), end + 1
