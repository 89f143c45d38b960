"""Counted repetitions of what may be empty, in the text of an expression. Pure, linear in its length.

`((.?){50}){50}` has 2,500 places where its next character may be: XGrammar follows all of them for every token of every
mask, however short the text. Such a part may stand where no trial comes to.
"""

from __future__ import annotations

import re
from typing import NamedTuple

_CLASS_OR_CODE = r"\[(?:[^\]\\]|\\.)*\]?|\\.?|\{\s*[0-9]*\s*,?\s*[0-9]*\s*\}"
_EBNF = re.compile(rf'"(?:[^"\\]|\\.)*"?|{_CLASS_OR_CODE}|[()|*+?{{]|\s+|[^\s()|*+?{{"\[\\]+', re.DOTALL)
_REGEX = re.compile(rf"\((?:\?(?::|P?<[A-Za-z_]\w*>))?|[*+?][?+]?|{_CLASS_OR_CODE}|[)|{{]|[^()|*+?{{\[\\]+", re.DOTALL)
_COUNT = re.compile(r"\{\s*([0-9]*)\s*(,?)\s*([0-9]*)\s*\}")
MOST = 1 << 60


class PatternItem(NamedTuple):
    """width: characters with which it may begin, each place counted. empty: it may be empty."""

    width: int
    empty: bool


_CHARACTER = PatternItem(1, False)


class _Group:
    """An open group: its finished alternatives, and the present one."""

    def __init__(self) -> None:
        self._before = PatternItem(0, False)
        self._present = PatternItem(0, True)
        self.last: PatternItem | None = None

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
        return self._before


def overlap(text: str, *, quotes: bool) -> int:
    """Returns the most places at which a counted repetition can begin; 0 without any.

    quotes: text between double quotes is a literal, as in EBNF. A rule's name counts as one character there.
    """
    groups, most, position = [_Group()], 0, 0
    tokens = _EBNF if quotes else _REGEX
    while (found := tokens.match(text, position)) is not None:
        part, group = found[0], groups[-1]
        char, position = part[0], found.end()
        if char == "(":
            groups.append(_Group())
        elif char == ")" and len(groups) > 1:
            item = groups.pop().closed()
            groups[-1].add(item)
        elif char == "|":
            group.alternative()
        elif char in "*+?" and group.last is not None:
            group.last = PatternItem(group.last.width, char != "+" or group.last.empty)
        elif char == "{" and group.last is not None and (count := _COUNT.fullmatch(part)) is not None:
            group.last = _counted(group.last, count)
            most = max(most, group.last.width)
        elif not char.isspace() or not quotes:
            empty = quotes and part == '""'
            if len(part) > 1 and char not in '[\\"':
                group.add(_CHARACTER)  # the others of a row of characters
            group.add(PatternItem(0 if empty else 1, empty))
    return most


def _counted(item: PatternItem, count: re.Match[str]) -> PatternItem:
    least = int(count[1][:9] or 0)
    times = max(least, int(count[3][:9] or 0), 1)
    return PatternItem(min(MOST, item.width * times) if item.empty else item.width, item.empty or not least)
