"""Expressions to one regular expression, written as terminals of llguidance's Lark dialect.

llguidance cuts text into the longest lexemes that a grammar allows, which takes other texts than the grammar does where
lexemes overlap. One lexeme has no borders: so the whole grammar becomes one. What is recursive is unrolled, to
MAX_DEPTH levels or fewer in a large grammar; the terminals are shared, and derivatives are made as a text needs them (a
JSON value 32 levels deep: 15 ms to compile, 7 to 60 us a mask with 2,000 and 150,000 tokens; 2026-11).
"""

from __future__ import annotations

import json
import re

from ...errors import GrammarInvalid, GrammarTooComplex
from .ebnf_parser import Chars, Either, Node, Pattern, Ref, Repeat, Rules, Series, Text, Until, Without, references

MAX_DEPTH = 32
MAX_TERMINALS = 6000
MAX_REPEATS = 500_000
"""Of repeats within repeats, their counts multiplied: a million of them took 13 s for one mask."""
BRACKETS = 4
_FIXED = '%llguidance {"no_forcing": true}\nstart: ROOT\nANY: /(?s:.)*/\n'
"""Where a grammar leaves one text only, llguidance would look ahead to its end for every mask: the name in an ordinary
tool call took more than its fuel, 7 ms instead of 0.7, and `(("a"){200}){100}` 0.15 s for every token (2026-11)."""
_EMPTY = "/(?:)/"
_NAME = re.compile(r"T\d+")


def lark(rules: Rules) -> str:
    """The grammar's text. Raises GrammarInvalid and GrammarTooComplex."""
    try:
        return _Unrolled(rules).text()
    except RecursionError:
        raise GrammarTooComplex("The grammar is nested too deep") from None


class _Unrolled:
    """Terminals for every rule and level, those that others need first: grammars have long chains of rules."""

    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self._order, self._back = walked(rules)
        self._recurring = _leading_to({name for name, _ in self._back}, rules)
        self._names: dict[str, str] = {}
        self._lines: list[str] = []
        self._terminals: dict[tuple[str, int], str] = {}
        self._repeats: dict[str, int] = {}

    def text(self) -> str:
        for name in self._order:
            self._repeats[name] = self._product(self._rules[name])
        if self._repeats["root"] > MAX_REPEATS:
            raise GrammarTooComplex(f"The grammar repeats what repeats, more than {MAX_REPEATS} times together")
        if len(self._order) > MAX_TERMINALS:
            raise GrammarTooComplex(f"The grammar has more than {MAX_TERMINALS} rules")
        most = max(2, min(MAX_DEPTH, MAX_TERMINALS // max(1, len(self._recurring)))) if self._back else 0
        for level in range(most + 1):
            for name in self._order:
                if not level or name in self._recurring:
                    self._write(name, level)
        root = self._expression("root", most)
        if not root:
            raise GrammarInvalid("No text fits the grammar")
        return f"{_FIXED}{chr(10).join(self._lines)}\nROOT: {root}\n"

    def _write(self, name: str, level: int) -> None:
        """A rule's terminal at a level."""
        if body := self._node(self._rules[name], name, level, 0):
            self._terminals[name, level] = self._named(body)

    def _named(self, body: str) -> str:
        """The terminal of an expression; equal ones have one, and what is a name, or nothing, needs none."""
        if body == _EMPTY or _NAME.fullmatch(body):
            return body
        if body not in self._names:
            self._names[body] = f"T{len(self._names)}"
            self._lines.append(f"{self._names[body]}: {body}")
        return self._names[body]

    def _expression(self, name: str, depth: int) -> str:
        """The terminal of a rule with so many levels of recursion left; "" when no text fits."""
        return self._terminals.get((name, depth if name in self._recurring else 0), "")

    def _node(self, node: Node, rule: str, depth: int, nesting: int) -> str:
        """The expression as Lark; "" when no text fits. llguidance refuses brackets that are nested deep."""
        if isinstance(node, Ref):
            return self._expression(node.name, depth - ((rule, node.name) in self._back))
        if isinstance(node, Series):
            parts = [self._node(part, rule, depth, nesting) for part in node.parts]
            return "" if "" in parts else " ".join(part for part in parts if part != _EMPTY) or _EMPTY
        if isinstance(node, Either):
            options = [t for option in node.options if (t := self._node(option, rule, depth, nesting + 1))]
            body = _alternatives(list(dict.fromkeys(options)))
        elif isinstance(node, Repeat):
            body = _repeated(self._node(node.body, rule, depth, nesting + 1), node)
        else:
            return _leaf(node)
        return self._named(body) if body and nesting % BRACKETS == BRACKETS - 1 else body

    def _product(self, node: Node) -> int:
        """Counts of repeats within repeats, multiplied; a rule that leads back to itself counts once."""
        if isinstance(node, Ref):
            return self._repeats.get(node.name, 1)
        if isinstance(node, Series):
            return max((self._product(part) for part in node.parts), default=1)
        if isinstance(node, Either):
            return max(self._product(option) for option in node.options)
        if isinstance(node, Repeat):
            inner = self._product(node.body)
            count = max(1, node.most if node.most is not None else node.least)
            return count * inner if inner > 1 else min(count, MAX_REPEATS)
        return 1


def _alternatives(options: list[str]) -> str:
    if _EMPTY in options:
        rest = _alternatives([option for option in options if option != _EMPTY])
        return f"({rest})?" if rest else _EMPTY
    return options[0] if len(options) == 1 else f"({' | '.join(options)})" if options else ""


def _repeated(body: str, node: Repeat) -> str:
    if not body or node.most == 0:
        return _EMPTY if node.least == 0 else ""
    if body == _EMPTY or (node.least, node.most) == (1, 1):
        return body
    if (node.least, node.most) == (0, 1):
        return f"({body})?"
    if node.most is None and node.least < 2:
        return f"({body}){'+' if node.least else '*'}"
    return f"({body}){{{node.least},{'' if node.most is None else node.most}}}"


def _leaf(node: Node) -> str:
    if isinstance(node, Text):
        return _literal(node.text)
    if isinstance(node, Chars):
        ranges = "".join(_range(low, high) for low, high in node.ranges)
        return f"/[{'^' if node.negated else ''}{ranges}]/" if ranges else ("/(?s:.)/" if node.negated else "")
    if isinstance(node, Until):
        ends = _any_of(node.ends)
        return f"((ANY {ends}) & ~(ANY {ends} /(?s:.)+/))"
    if isinstance(node, Without):
        return f"(ANY & ~(ANY {_any_of(node.texts)} ANY))" if node.texts else "ANY"
    assert isinstance(node, Pattern)
    return "(" + "/" + node.pattern.replace("\\/", "/").replace("/", "\\/").replace("\n", "\\n") + "/" + ")"


def _any_of(texts: tuple[str, ...]) -> str:
    return f"({' | '.join(_literal(text) for text in texts)})"


def _literal(text: str) -> str:
    return json.dumps(text) if text else _EMPTY


def _range(low: int, high: int) -> str:
    return f"\\x{{{low:x}}}" if low == high else f"\\x{{{low:x}}}-\\x{{{high:x}}}"


def walked(rules: Rules) -> tuple[list[str], set[tuple[str, str]]]:
    """The rules that root needs, each after those that it names, and the names that lead back (every circle has one).

    A depth-first walk with a stack of its own.
    """
    order: list[str] = []
    back: set[tuple[str, str]] = set()
    done = {"root": False}
    stack = [("root", iter(references(rules["root"])))]
    while stack:
        name, rest = stack[-1]
        for other in rest:
            if other not in done:
                done[other] = False
                stack.append((other, iter(references(rules[other]))))
                break
            if not done[other]:
                back.add((name, other))
        else:
            done[name] = True
            order.append(name)
            stack.pop()
    return order, back


def _leading_to(wanted: set[str], rules: Rules) -> set[str]:
    """The rules from which one of these can be reached: their text depends on the levels that are left."""
    callers: dict[str, set[str]] = {}
    for name, node in rules.items():
        for other in references(node):
            callers.setdefault(other, set()).add(name)
    found, open_ = set(wanted), list(wanted)
    while open_:
        for caller in callers.get(open_.pop(), ()):
            if caller not in found:
                found.add(caller)
                open_.append(caller)
    return found
