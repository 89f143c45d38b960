"""How long a text can be that a grammar leaves no choice about.

llguidance looks ahead through such a text for every mask, 5 us a character: `(("a"){200}){100}` takes 0.15 s for every
token.
"""

from __future__ import annotations

from typing import NamedTuple

from .ebnf_parser import Chars, Either, Node, Ref, Repeat, Rules, Series, Text

MOST = 1 << 40


class Run(NamedTuple):
    """Characters without a choice: first, last: at the beginning and the end; most: of the longest such text.

    whole: there is no choice at all, and first == last == most.
    """

    first: int
    last: int
    most: int
    whole: bool


CHOICE = Run(0, 0, 0, False)


def longest(rules: Rules, order: list[str]) -> int:
    """Of the rules' texts. order: those rules that are needed, each after the ones that it names, unless it recurs."""
    runs: dict[str, Run] = {}
    for name in order:
        runs[name] = _run(rules[name], runs)
    return max((run.most for run in runs.values()), default=0)


def _run(node: Node, runs: dict[str, Run]) -> Run:
    if isinstance(node, Ref):
        return runs.get(node.name, CHOICE)
    if isinstance(node, Text):
        return _exactly(len(node.text))
    if isinstance(node, Chars):
        single = not node.negated and len(node.ranges) == 1 and node.ranges[0][0] == node.ranges[0][1]
        return _exactly(1) if single else CHOICE
    if isinstance(node, Series):
        found = _exactly(0)
        for part in node.parts:
            found = _joined(found, _run(part, runs))
        return found
    if isinstance(node, Either):
        inner = [_run(option, runs) for option in node.options]
        return Run(0, 0, max(run.most for run in inner), False)
    if isinstance(node, Repeat):
        inside = _run(node.body, runs)
        if inside.whole:
            exact = node.most == node.least
            length = min(MOST, inside.most * node.least)
            return _exactly(length) if exact else Run(length, length, max(length, inside.most), False)
        ends = (inside.first, inside.last) if node.least else (0, 0)
        return Run(*ends, max(inside.most, inside.last + inside.first), False)
    return CHOICE


def _exactly(length: int) -> Run:
    length = min(MOST, length)
    return Run(length, length, length, True)


def _joined(one: Run, other: Run) -> Run:
    first = one.first + other.first if one.whole else one.first
    last = one.last + other.last if other.whole else other.last
    most = max(one.most, other.most, one.last + other.first)
    return Run(min(MOST, first), min(MOST, last), min(MOST, most), one.whole and other.whole)
