"""What a grammar in Lark's notation (lark.py) is written in: one regular expression, or rules in EBNF.

Both writers have the same methods, each of which joins what was written before. Pure text; they read no notation.
"""

from __future__ import annotations

from typing import Any, Protocol

from .ebnf import Ebnf, char_class, literal, optional, repeat
from .json_schema import WIDE, JsonValues
from .regex import NotSupported, pattern

MAX_CHARACTERS = 20_000
"""Of a regular expression: each use of a rule is written out."""


class Writer(Protocol):
    """Expressions of one notation."""

    def either(self, options: list[str]) -> str:
        """One of these."""
        ...

    def series(self, items: list[str]) -> str:
        """One after the other."""
        ...

    def group(self, inside: str) -> str:
        """The same, as one item of a series."""
        ...

    def repeat(self, item: str, least: int, most: int | None) -> str:
        """The item, least to most times; most None: no limit."""
        ...

    def text(self, text: str, *, any_case: bool) -> str:
        """Exactly this text, or also in other case."""
        ...

    def span(self, low: str, high: str) -> str:
        """One character from low to high."""
        ...

    def pattern(self, text: str) -> str:
        """What a regular expression matches. Raises NotSupported."""
        ...

    def json(self, schema: Any) -> str:
        """JSON that a schema allows. Raises NotSupported."""
        ...


class PatternWriter:
    """One regular expression, in the dialect of regex.py, without anchors."""

    def either(self, options: list[str]) -> str:
        found = options[0] if len(options) == 1 else f"(?:{'|'.join(options)})"
        if len(found) > MAX_CHARACTERS:
            raise NotSupported(f"Lark: more than {MAX_CHARACTERS} characters as a regular expression")
        return found

    def series(self, items: list[str]) -> str:
        return "".join(items)

    def group(self, inside: str) -> str:
        return inside

    def repeat(self, item: str, least: int, most: int | None) -> str:
        mark = {(0, None): "*", (1, None): "+", (0, 1): "?"}.get((least, most), f"{{{least},{most}}}")
        return f"(?:{item}){mark}"

    def text(self, text: str, *, any_case: bool) -> str:
        return "".join(f"[{''.join(cases)}]" if len(cases := _cases(c, any_case)) > 1 else _plain(c) for c in text)

    def span(self, low: str, high: str) -> str:
        return f"[{_in_class(low)}-{_in_class(high)}]"

    def pattern(self, text: str) -> str:
        return f"(?:{text})"

    def json(self, schema: Any) -> str:
        raise NotSupported("Lark: %json")


class RuleWriter:
    """Expressions of a grammar in EBNF."""

    def __init__(self, ebnf: Ebnf) -> None:
        self._ebnf = ebnf

    def either(self, options: list[str]) -> str:
        return self._ebnf.choice(options)

    def series(self, items: list[str]) -> str:
        return " ".join(items) or '""'

    def group(self, inside: str) -> str:
        return f"({inside})"

    def repeat(self, item: str, least: int, most: int | None) -> str:
        return optional(item) if (least, most) == (0, 1) else repeat(item, least, most)

    def text(self, text: str, *, any_case: bool) -> str:
        if not any_case:
            return literal(text)
        return " ".join(char_class([(ord(case), ord(case)) for case in _cases(c, any_case)]) for c in text) or '""'

    def span(self, low: str, high: str) -> str:
        if low > high:
            raise NotSupported("Lark: a range that ends before it begins")
        return char_class([(ord(low), ord(high))])

    def pattern(self, text: str) -> str:
        return pattern(text, self._ebnf, plain=True)

    def json(self, schema: Any) -> str:
        return JsonValues(self._ebnf, schema, WIDE).value(schema)


def _cases(char: str, any_case: bool) -> list[str]:
    """The character, or its lower and upper case; without those that are several characters ("ß" is "SS")."""
    cases = (char.lower(), char.upper()) if any_case else (char,)
    return [case for case in dict.fromkeys(cases) if len(case) == 1] or [char]


def _plain(char: str) -> str:
    return f"\\x{ord(char):02x}" if ord(char) < 32 else f"\\{char}" if char in r"\^$.|?*+()[]{}/" else char


def _in_class(char: str) -> str:
    return f"\\x{ord(char):02x}" if ord(char) < 32 else f"\\{char}" if char in r"\^]-[" else char
