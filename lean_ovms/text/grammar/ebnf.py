"""Write grammars in XGrammar's EBNF (https://xgrammar.mlc.ai/docs/tutorials/ebnf_guided_generation.html).

An expression is a str that may stand on the right of a rule: a literal, a rule's name, or a sequence of those. Pure
text; knows no schemas and no models.
"""

from __future__ import annotations

import os
import re

_NOT_A_NAME = re.compile(r"[^A-Za-z0-9_]+")
_HEX = frozenset("0123456789abcdefABCDEF")
_ESCAPES = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t"}


class Ebnf:
    """The rules of one grammar. Equal rules are written once."""

    def __init__(self) -> None:
        self._rules: dict[str, str] = {}
        self._by_body: dict[str, str] = {}
        self._last: dict[str, int] = {}

    def rule(self, hint: str, body: str) -> str:
        """The name of a rule with this body. hint: for a name."""
        known = self._by_body.get(body)
        return known if known is not None else self.define(self.name(hint), body)

    def name(self, hint: str) -> str:
        """A name for a rule that is defined later; recursion needs it."""
        base = _NOT_A_NAME.sub("_", hint)[:32].strip("_") or "r"
        if base[0].isdigit() or base == "root":
            base = "r_" + base
        name = base
        while name in self._rules:
            self._last[base] = self._last.get(base, 1) + 1
            name = f"{base}_{self._last[base]}"
        self._rules[name] = '""'
        return name

    def define(self, name: str, body: str) -> str:
        """Give a name its body."""
        self._rules[name] = body
        self._by_body.setdefault(body, name)
        return name

    def choice(self, options: list[str]) -> str:
        """One of these expressions, as rules of their own.

        XGrammar 0.1.31 merges states of a rule whose alternatives begin alike until it takes texts that are none of
        them ("b1" and "b1b1" gave "b1bbb1"; mended upstream later). It does not merge rules, nor put one in the place
        of its name that has a name in it; so every alternative becomes such a rule.
        """
        unique = list(dict.fromkeys(options))
        if len(unique) == 1:
            return unique[0]
        nothing = self.rule("nothing", '""')
        closed = [o if o == '""' else self.rule("one", f"{o} {nothing}") for o in unique]
        return self.rule("either", " | ".join(closed))

    def words(self, words: list[str]) -> str:
        """One of these texts, as a tree in which no two branches begin alike (see `choice`)."""
        return _tree(sorted(set(words)))

    def text(self, root: str) -> str:
        """The whole grammar, which begins with the expression root."""
        return "\n".join([f"root ::= {root}", *(f"{name} ::= {body}" for name, body in self._rules.items())]) + "\n"


def literal(text: str) -> str:
    """Exactly this text."""
    out, coded = "", False
    for char in text:
        if coded and char in _HEX:
            out += '" "'  # XGrammar takes every hex digit after \\u for a part of the code
        plain = _ESCAPES.get(char) or (char if char.isprintable() else None)
        coded = plain is None
        out += plain or _code(char)
    return f'"{out}"'


def without_prefix(expression: str, start: str) -> str:
    """The rest of an expression that begins with a literal, without this prefix of the literal."""
    written = literal(start)[:-1]
    assert expression.startswith(written), f"{expression[:40]} does not begin with {written}"
    return '"' + expression[len(written) :]


def _code(char: str) -> str:
    return f"\\u{ord(char):04x}" if ord(char) < 0x10000 else f"\\U{ord(char):08x}"


def either(options: list[str]) -> str:
    """One of these expressions, no two of which may begin alike (see Ebnf.choice)."""
    unique = list(dict.fromkeys(options))
    return unique[0] if len(unique) == 1 else "(" + " | ".join(unique) + ")"


def branches(sequences: list[list[str]]) -> str:
    """One of these sequences of expressions, as a tree in which no two branches begin alike."""
    heads: dict[str, list[list[str]]] = {}
    for sequence in sequences:
        if sequence:
            heads.setdefault(sequence[0], []).append(sequence[1:])
    options = []
    for head, rests in heads.items():
        rest = branches(rests) if any(rests) else ""
        options.append(f"{head} {rest}".strip())
    if not options:
        return '""'
    body = either(options)
    return optional(body) if any(not sequence for sequence in sequences) else body


def _tree(words: list[str]) -> str:
    """A sorted list of different words as a radix tree."""
    if len(words) == 1:
        return literal(words[0])
    heads: dict[str, list[str]] = {}
    for word in words:
        if word:
            heads.setdefault(word[0], []).append(word)
    options = []
    for group in heads.values():
        shared = os.path.commonprefix(group)  # noqa: RUF071 - it is what it does
        rests = [word[len(shared) :] for word in group]
        options.append(literal(shared) if len(rests) == 1 else f"{literal(shared)} {_tree(rests)}")
    body = either(options)
    return optional(body) if "" in words else body


def optional(expression: str) -> str:
    """The expression or nothing."""
    return f"({expression})?"


def repeat(expression: str, least: int, most: int | None) -> str:
    """The expression, least to most times; most None: no limit."""
    if (least, most) == (0, None):
        return f"({expression})*"
    if (least, most) == (1, 1):
        return expression
    return f"({expression}){{{least},{'' if most is None else most}}}"


def until(end: str) -> str:
    """Any text up to this end, inclusive."""
    return f"TagDispatch(stop_eos=false, stop_str=({literal(end)}), loop_after_dispatch=false)"


def dispatch(trigger: str, then: str) -> str:
    """Any text, in which `then` follows each trigger. then: the name of a rule."""
    return f"TagDispatch(({literal(trigger)}, {then}))"


def char_class(ranges: list[tuple[int, int]], *, negated: bool = False) -> str:
    """One character in (or, negated, outside) these ranges of code points."""
    parts = [_class_char(a) if a == b else f"{_class_char(a)}-{_class_char(b)}" for a, b in ranges]
    parts.sort(key=lambda part: part.startswith(("\\u", "\\U")))  # no hex digit after a code (see `literal`)
    return f"[{'^' if negated else ''}{''.join(parts)}]"


def _class_char(code: int) -> str:
    char = chr(code)
    if char in "\\]-^[":
        return "\\" + char
    return char if char.isprintable() and char != '"' else _code(char)


def chain(ebnf: Ebnf, members: list[tuple[str, bool]], comma: str, other: str | None) -> str:
    """Members in order, optional ones possibly left out, then any number of others; "" if there are none.

    Two rules a member, so that the grammar grows with their number and not with the number of their choices.
    """
    after = f"({comma} {other})*" if other else ""
    start = optional(f"{other} {after}") if other else ""
    for member, needed in reversed(members):
        here = f"{member} {after}".strip()
        start = here if needed else ebnf.choice([here, start or '""'])
        after = f"{comma} {member} {after}".strip() if needed else f"({comma} {member})? {after}".strip()
        start, after = ebnf.rule("first", start), ebnf.rule("then", after)
    return start
