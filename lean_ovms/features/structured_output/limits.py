"""Checks the text of a grammar against limits, in linear time, as the first and cheapest check.

The limits refuse grammars that would crash a process (10,000 nested brackets overflow xgrammar's stack), and those that
are slow only after they were compiled (a repetition of 100,000 takes 150 ms for every token). Everything else is found
out by compiling in a process that can be killed, so the limits are wide.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import orjson

from ...errors import GrammarInvalid, GrammarTooComplex
from ...types import SCHEMA_MAPS, Json
from .feature import StructuredOutputOptions
from .schemas import MAX_COUNT

NESTED = ("format", "elements", "content", "tags")
"""The members of a structural tag and its formats that contain formats."""
GROWTH = 8
"""The limit of a whole grammar, all schemas of format and tools included, as a multiple of that of one schema."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GrammarBounds:
    """The limits of a grammar, all inclusive."""

    bytes: int = 65536
    """The size of the whole text in bytes."""
    nesting: int = 64
    """The depth of brackets of any kind."""
    repetition: int = 20000
    """The sum of the counted repetitions in an expression; a nested one is multiplied by those around it."""
    overlap: int = 128
    """The number of places at which one counted repetition in an expression can begin."""
    count: int = MAX_COUNT
    """The value of minLength and similar keywords."""
    properties: int = 500
    """The number of properties in one schema."""
    choices: int = 5000
    """The number of values of one enum."""
    multiple: int = 10_000
    """The value of multipleOf without its decimal point and its factors 2 and 5."""

    @classmethod
    def of(cls, options: StructuredOutputOptions) -> GrammarBounds:
        """Returns the limits, of which the options set some."""
        return cls(bytes=GROWTH * options.grammar_max_bytes, nesting=options.grammar_max_nesting)


class GrammarCost(NamedTuple):
    """The cost of compiling and of matching a grammar."""

    seconds: float
    """The CPU seconds of compiling it."""
    bytes: int
    """The size of the compiled grammar in bytes."""
    token_s: float = 0.0
    """The CPU seconds of the slowest mask of a token that was found."""
    notices: tuple[str, ...] = ()
    """Notices for the client about parts of the grammar that the library does not enforce."""


def check(text: str, bounds: GrammarBounds) -> Any:
    """Checks the text of a structural tag, and returns it parsed. Raises GrammarRefused."""
    size = len(text.encode("utf-8", "surrogatepass"))
    if size > bounds.bytes:
        raise too_complex(f"it has {size} bytes; the limit is {bounds.bytes}")
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
    """Returns the depth of nested brackets outside JSON strings."""
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
    """Yields every key and value of every object inside a value, without recursion."""
    todo = [value]
    while todo:
        item = todo.pop()
        if isinstance(item, dict):
            yield from item.items()
            todo += item.values()
        elif isinstance(item, list):
            todo += item


def formats_in(tag: Any) -> Iterator[Json]:
    """Yields a structural tag and all formats in it, which are not the objects in their schemas."""
    todo = [tag]
    while todo:
        part = todo.pop()
        if isinstance(part, list):
            todo += part
        elif isinstance(part, dict):
            yield part
            todo += [part[key] for key in NESTED if key in part]


def expressions(tag: Any) -> dict[str, Json]:
    """Returns the parts of a structural tag that are a schema or a regular expression, by their JSON, in their order.

    The schemas of the tools and the format are such parts, or have some: an argument in XML has its own.
    """
    kinds = ("json_schema", "regex")
    return {orjson.dumps(part).decode(): part for part in formats_in(tag) if part.get("type") in kinds}


_COUNTS = frozenset(("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties"))


def _check_member(key: str, value: Any, bounds: GrammarBounds) -> None:
    if key in SCHEMA_MAPS and isinstance(value, dict):
        if len(value) > bounds.properties:
            raise too_complex(f"it has {len(value)} {key}; the limit is {bounds.properties}")
    elif key == "enum" and isinstance(value, list):
        if len(value) > bounds.choices:
            raise too_complex(f"it has an enum of {len(value)} values; the limit is {bounds.choices}")
    elif key in _COUNTS and isinstance(value, (int, float)):
        if value > bounds.count:
            raise too_complex(f"{key} is {value:g}; the limit is {bounds.count}")
    elif key == "multipleOf" and isinstance(value, int | float):
        if _odd_part(value) > bounds.multiple:
            raise too_complex(f"multipleOf {value:g} has too many digits")
    elif key in ("pattern", "grammar") and isinstance(value, str):
        _check_expression(value, key == "grammar", bounds)


def _odd_part(value: float) -> int:
    """Returns the digits of a number as an integer without the factors 2 and 5.

    An automaton that recognizes the multiples of the number has about as many states.
    """
    digits = f"{abs(value):.10f}".replace(".", "")
    number = int(digits) if digits.isdigit() else 0
    for factor in (2, 5):
        while number and number % factor == 0:
            number //= factor
    return number


def _check_expression(text: str, quotes: bool, bounds: GrammarBounds) -> None:
    from .expression_size import expression_size  # late, because few grammars contain expressions

    size = expression_size(text, quotes=quotes)
    if size.depth > bounds.nesting:
        raise too_complex(f"its groups are nested deeper than {bounds.nesting} levels")
    if size.repetition > bounds.repetition:
        raise too_complex(f"its counted repetitions multiply to more than {bounds.repetition}")
    if size.overlap > bounds.overlap:
        raise too_complex(f"it repeats an expression that may be empty more than {bounds.overlap} times")
