"""Measures a regular expression or an EBNF grammar in groups and counted repetitions. Pure, linear in its length.

`((.?){50}){50}` has 2,500 places where its next character may be: XGrammar follows all of them for every token of every
mask, however short the output. Such a part may stand where no trial comes to.
"""

from __future__ import annotations

import re
from typing import NamedTuple

_CLASS_OR_CODE = r"\[(?:[^\]\\]|\\.)*\]?|\\.?|\{\s*[0-9]*\s*,?\s*[0-9]*\s*\}"
_EBNF = re.compile(rf'"(?:[^"\\]|\\.)*"?|{_CLASS_OR_CODE}|[()|*+?{{]|\s+|[^\s()|*+?{{"\[\\]+', re.DOTALL)
_REGEX = re.compile(rf"\((?:\?(?::|P?<[A-Za-z_]\w*>))?|[*+?][?+]?|{_CLASS_OR_CODE}|[)|{{]|[^()|*+?{{\[\\]+", re.DOTALL)
_COUNT = re.compile(r"\{\s*([0-9]*)\s*(,?)\s*([0-9]*)\s*\}")
MOST = 1 << 60
"""Larger sizes are not told apart."""


class ExpressionSize(NamedTuple):
    """The numbers by which an expression is limited."""

    depth: int
    """The depth of nested groups."""
    repetition: int
    """The sum of all counted repetitions, a nested one times those around it."""
    overlap: int
    """The most places at which a counted repetition can begin; 0 without any."""


class PatternItem(NamedTuple):
    """A part of an expression."""

    width: int
    """The characters with which it may begin, each place counted."""
    empty: bool
    """Whether it may be empty."""
    cost: int = 1
    """The cost of its repetitions, at least 1."""


_CHARACTER = PatternItem(1, False)


class _Group:
    """An open group: its finished alternatives, the present one, and the cost of its repetitions."""

    def __init__(self) -> None:
        self._before = PatternItem(0, False)
        self._present = PatternItem(0, True)
        self.last: PatternItem | None = None
        self.cost = 0

    def add(self, item: PatternItem | None) -> None:
        """Adds the next item; the last one had its quantifiers."""
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
        """Counts the last item as often as it may be repeated."""
        least = int(count[1][:9] or 0)
        times = max(least, int(count[3][:9] or 0), 1)
        self.cost = min(MOST, self.cost + times * item.cost)
        width = min(MOST, item.width * times) if item.empty else item.width
        self.last = PatternItem(width, item.empty or not least, item.cost)


def expression_size(text: str, *, quotes: bool) -> ExpressionSize:
    """Measures a regular expression or a grammar in EBNF.

    Args:
        text: The expression.
        quotes: Whether it is EBNF, where text between double quotes is a literal and the name of a rule counts as one
            character.
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
                group.add(_CHARACTER)  # the others of a row of characters
            group.add(PatternItem(0 if empty else 1, empty))
    return ExpressionSize(deepest, min(MOST, sum(group.cost for group in groups)), most)
