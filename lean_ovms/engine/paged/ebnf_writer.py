"""Expressions to XGrammar's EBNF (https://xgrammar.mlc.ai/docs/tutorials/ebnf_guided_generation.html).

What no text fits is left out before: XGrammar would begin a text that cannot be ended. Recursion stays as it is.
"""

from __future__ import annotations

from collections.abc import Iterable

from ...errors import GrammarInvalid, GrammarTooComplex
from .ebnf_parser import Chars, Either, Node, Pattern, Ref, Repeat, Rules, Series, Text, Until, Without
from .regular import MAX_TERMINALS, walked

ANY = Chars(((0, 0x10FFFF),), False)
_EMPTY = '""'


def ebnf(rules: Rules) -> str:
    """The grammar's text, whose first rule is root. Raises GrammarInvalid and GrammarTooComplex."""
    try:
        order, _ = walked(rules)
        if len(order) > MAX_TERMINALS:
            raise GrammarTooComplex(f"The grammar has more than {MAX_TERMINALS} rules")
        return _Writer(rules, order).text()
    except RecursionError:
        raise GrammarTooComplex("The grammar is nested too deep") from None


class _Writer:
    """order: the rules that root needs, root last."""

    def __init__(self, rules: Rules, order: list[str]) -> None:
        self._rules = rules
        self._order = order
        self._names = {name: f"r{place}" for place, name in enumerate(order)} | {"root": "root"}
        self._fitting = _fitting(rules, order)
        self._lines: list[str] = []
        self._free: dict[tuple[str, ...], str] = {}

    def text(self) -> str:
        if "root" not in self._fitting:
            raise GrammarInvalid("No text fits the grammar")
        for name in reversed(self._order):
            if name in self._fitting:
                self._lines.append(f"{self._names[name]} ::= {self._node(self._rules[name])}")
        return "\n".join(self._lines) + "\n"

    def _node(self, node: Node) -> str:
        """What texts fit."""
        if isinstance(node, Ref):
            return self._names[node.name]
        if isinstance(node, Series):
            return " ".join(self._node(part) for part in node.parts) or _EMPTY
        if isinstance(node, Either):
            options = [self._node(part) for part in node.options if _fits(part, self._fitting)]
            return f"({' | '.join(dict.fromkeys(options))})"
        if isinstance(node, Repeat):
            if node.most == 0 or not _fits(node.body, self._fitting):
                return _EMPTY
            most = "" if node.most is None else node.most
            return f"({self._node(node.body)}){{{node.least},{most}}}"
        if isinstance(node, Text):
            return f'"{_written(node.text)}"' if node.text else _EMPTY
        if isinstance(node, Chars):
            return _class(node if node.ranges else ANY)
        if isinstance(node, Without):
            return self._without(node.texts)
        if isinstance(node, Until):
            return self._until(node.ends)
        raise GrammarInvalid(_pattern_error(node))

    def _without(self, texts: tuple[str, ...]) -> str:
        """A rule of text in which none of these is."""
        if not texts:
            return f"{_class(ANY)}*"
        if texts not in self._free:
            self._free[texts] = name = f"free{len(self._free)}"
            listed = ", ".join(f'"{_written(text)}"' for text in texts)
            self._lines.append(f"{name} ::= TagDispatch(loop_after_dispatch=false, excludes=({listed}))")
        return self._free[texts]

    def _until(self, ends: tuple[str, ...]) -> str:
        """Text up to the first of these. An end that may begin within one before it needs a rule for each letter."""
        if not any(_overlap(one, other) for one in ends for other in ends):
            return f"{self._without(ends)} ({' | '.join(self._node(Text(end)) for end in ends)})"
        states = sorted({end[:size] for end in ends for size in range(len(end))})
        number = len(self._lines)
        names = {state: f"until{number}_{place}" for place, state in enumerate(states)}
        letters = sorted({letter for end in ends for letter in end})
        for state in states:
            to: dict[str, list[str]] = {}
            for letter in letters:
                text = state + letter
                ended = any(text.endswith(end) for end in ends)
                after = next(text[cut:] for cut in range(len(text) + 1) if text[cut:] in names)
                to.setdefault("" if ended else names[after], []).append(letter)
            rest = _class(Chars(tuple((ord(letter), ord(letter)) for letter in letters), True))
            rest = f"{rest} {names['']}"
            options = [f"{_class(_one_of(of))} {name}".strip() for name, of in to.items()]
            self._lines.append(f"{names[state]} ::= {' | '.join([*options, rest])}")
        return names[""]


def _fitting(rules: Rules, order: list[str]) -> set[str]:
    """The rules that some text fits."""
    fitting: set[str] = set()
    before = -1
    while len(fitting) != before:
        before = len(fitting)
        fitting.update(name for name in order if name not in fitting and _fits(rules[name], fitting))
    return fitting


def _fits(node: Node, fitting: set[str]) -> bool:
    if isinstance(node, Ref):
        return node.name in fitting
    if isinstance(node, Series):
        return all(_fits(part, fitting) for part in node.parts)
    if isinstance(node, Either):
        return any(_fits(part, fitting) for part in node.options)
    if isinstance(node, Repeat):
        return node.least == 0 or ((node.most is None or node.most > 0) and _fits(node.body, fitting))
    return not isinstance(node, Chars) or node.negated or bool(node.ranges)


def _overlap(one: str, other: str) -> bool:
    """An end may begin within another, or be inside of it."""
    return any(one[-size:] == other[:size] for size in range(1, min(len(one), len(other)))) or (
        one != other and one in other
    )


def _one_of(letters: Iterable[str]) -> Chars:
    return Chars(tuple((ord(letter), ord(letter)) for letter in letters), False)


def _written(text: str) -> str:
    return "".join(map(_code, map(ord, text)))


def _class(node: Chars) -> str:
    ranges = "".join(_code(low) if low == high else f"{_code(low)}-{_code(high)}" for low, high in node.ranges)
    return f"[{'^' if node.negated else ''}{ranges}]"


def _code(code: int) -> str:
    """A letter or digit, else a code of fixed length: what follows cannot be taken for a part of it."""
    char = chr(code)
    if code < 128 and char.isalnum():
        return char
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def _pattern_error(node: Pattern) -> str:
    return f"The regular expression {node.pattern[:100]!r} has a part that XGrammar cannot impose; guidance may"
