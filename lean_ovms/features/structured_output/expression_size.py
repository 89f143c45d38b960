"""Measures the nesting and the counted repetitions of a regular expression or an EBNF grammar, in linear time.

In `((.?){50}){50}` the next character may be at any of 2,500 places, all of which XGrammar follows for every token of
every mask, however short the output is. Trying a grammar with random outputs may never reach such a part, so it is
measured in the text.
"""

from __future__ import annotations

import re
from typing import NamedTuple

_CLASS_OR_CODE = r"\[(?:[^\]\\]|\\.)*\]?|\\.?|\{\s*[0-9]*\s*,?\s*[0-9]*\s*\}"
_EBNF = re.compile(rf'"(?:[^"\\]|\\.)*"?|{_CLASS_OR_CODE}|[()|*+?{{]|\s+|[^\s()|*+?{{"\[\\]+', re.DOTALL)
_REGEX = re.compile(rf"\((?:\?(?::|P?<[A-Za-z_]\w*>))?|[*+?][?+]?|{_CLASS_OR_CODE}|[)|{{]|[^()|*+?{{\[\\]+", re.DOTALL)
_COUNT = re.compile(r"\{\s*([0-9]*)\s*(,?)\s*([0-9]*)\s*\}")
MOST = 1 << 60
"""The largest size; all larger sizes count as this one."""


class ExpressionSize(NamedTuple):
    """The size of an expression, in the numbers that are limited."""

    depth: int
    """The depth of nested groups."""
    repetition: int
    """The sum of all counted repetitions; a nested one is multiplied by those around it."""
    overlap: int
    """The most places at which one counted repetition can begin; 0 without counted repetitions."""


class PatternItem(NamedTuple):
    """The size of a part of an expression."""

    width: int
    """The number of places that may have its first character."""
    empty: bool
    """Whether the part may match the empty text."""
    cost: int = 1
    """The sum of its counted repetitions, at least 1."""


_CHARACTER = PatternItem(1, False)


class _Group:
    """A group that is being read: its finished alternatives, the current one, and the cost of its repetitions."""

    def __init__(self) -> None:
        self._before = PatternItem(0, False)
        self._present = PatternItem(0, True)
        self.last: PatternItem | None = None
        self.cost = 0

    def add(self, item: PatternItem | None) -> None:
        """Begins the next item, as the last one is complete with its quantifiers."""
        if self.last is not None:
            width = self._present.width + (self.last.width if self._present.empty else 0)
            self._present = PatternItem(min(MOST, width), self._present.empty and self.last.empty)
        self.last = item

    def alternative(self) -> None:
        self.add(None)
        self._before = PatternItem(self._before.width + self._present.width, self._before.empty or self._present.empty)
        self._present = PatternItem(0, True)

    def closed(self) -> PatternItem:
        self.alternative()
        return PatternItem(self._before.width, self._before.empty, max(1, self.cost))

    def repeat(self, item: PatternItem, count: re.Match[str]) -> None:
        """Applies a counted repetition to the last item."""
        least = int(count[1][:9] or 0)
        times = max(least, int(count[3][:9] or 0), 1)
        self.cost = min(MOST, self.cost + times * item.cost)
        width = min(MOST, item.width * times) if item.empty else item.width
        self.last = PatternItem(width, item.empty or not least, item.cost)


def expression_size(text: str, *, quotes: bool) -> ExpressionSize:
    """Measures a regular expression, or a grammar in EBNF if `quotes` is set.

    In EBNF, text between double quotes is a literal, and the name of a rule counts as one character.
    """
    groups, deepest, most, position = [_Group()], 0, 0, 0
    tokens = _EBNF if quotes else _REGEX
    while (found := tokens.match(text, position)) is not None:
        part, group = found[0], groups[-1]
        char, position = part[0], found.end()
        if char == "(":
            groups.append(_Group())
            deepest = max(deepest, len(groups) - 1)
        elif char == ")" and len(groups) > 1:
            inner = groups.pop()
            groups[-1].add(inner.closed())
            groups[-1].cost = min(MOST, groups[-1].cost + inner.cost)
        elif char == "|":
            group.alternative()
        elif char in "*+?" and group.last is not None:
            group.last = PatternItem(group.last.width, char != "+" or group.last.empty)
        elif char == "{" and group.last is not None and (count := _COUNT.fullmatch(part)) is not None:
            group.repeat(group.last, count)
            most = max(most, group.last.width)
        elif not char.isspace() or not quotes:
            empty = quotes and part == '""'
            if len(part) > 1 and char not in '[\\"':
                group.add(_CHARACTER)  # one of several characters in a row
            group.add(PatternItem(0 if empty else 1, empty))
    return ExpressionSize(deepest, min(MOST, sum(group.cost for group in groups)), most)
