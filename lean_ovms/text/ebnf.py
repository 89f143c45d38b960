"""Writing grammars in XGrammar's EBNF (https://xgrammar.mlc.ai/docs/tutorials/ebnf_guided_generation.html).

An expression is a str that may stand on the right of a rule: a literal, a rule's name, or a sequence of those. Pure
text; knows no schemas and no models.
"""

from __future__ import annotations

import re

_NOT_A_NAME = re.compile(r"[^A-Za-z0-9_]+")
_ESCAPES = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t"}


class Ebnf:
    """The rules of one grammar. Equal rules are written once."""

    def __init__(self) -> None:
        self._rules: dict[str, str] = {}
        self._by_body: dict[str, str] = {}

    def rule(self, hint: str, body: str) -> str:
        """The name of a rule with this body. hint: what it might be called."""
        known = self._by_body.get(body)
        return known if known is not None else self.define(self.name(hint), body)

    def name(self, hint: str) -> str:
        """A name for a rule that is defined later; recursion needs it."""
        base = _NOT_A_NAME.sub("_", hint)[:32].strip("_") or "r"
        if base[0].isdigit() or base == "root":
            base = "r_" + base
        name, number = base, 1
        while name in self._rules:
            number += 1
            name = f"{base}_{number}"
        self._rules[name] = '""'
        return name

    def define(self, name: str, body: str) -> str:
        """Give a name its body."""
        self._rules[name] = body
        self._by_body.setdefault(body, name)
        return name

    def text(self, root: str) -> str:
        """The whole grammar, which begins with the expression root."""
        return "\n".join([f"root ::= {root}", *(f"{name} ::= {body}" for name, body in self._rules.items())]) + "\n"


def literal(text: str) -> str:
    """Exactly this text."""
    return '"' + "".join(_ESCAPES.get(c) or (c if c.isprintable() else _code(c)) for c in text) + '"'


def after(expression: str, start: str) -> str:
    """What is left of an expression that begins with a literal, when this start of it is there already."""
    written = literal(start)[:-1]
    assert expression.startswith(written), f"{expression[:40]} does not begin with {written}"
    return '"' + expression[len(written) :]


def _code(char: str) -> str:
    return f"\\u{ord(char):04x}" if ord(char) < 0x10000 else f"\\U{ord(char):08x}"


def either(options: list[str]) -> str:
    """One of these expressions."""
    unique = list(dict.fromkeys(options))
    return unique[0] if len(unique) == 1 else "(" + " | ".join(unique) + ")"


def optional(expression: str) -> str:
    """The expression or nothing."""
    return f"({expression})?"


def repeat(expression: str, least: int, most: int | None) -> str:
    """The expression so many times; most None is no end."""
    if (least, most) == (0, None):
        return f"({expression})*"
    if (least, most) == (1, 1):
        return expression
    return f"({expression}){{{least},{'' if most is None else most}}}"


def until(end: str) -> str:
    """Any text up to and with this end."""
    return f"TagDispatch(stop_eos=false, stop_str=({literal(end)}), loop_after_dispatch=false)"


def whenever(trigger: str, then: str) -> str:
    """Any text, in which `then` follows each trigger. then: the name of a rule."""
    return f"TagDispatch(({literal(trigger)}, {then}))"


def char_class(ranges: list[tuple[int, int]], *, negated: bool = False) -> str:
    """One character in (or, negated, outside) these ranges of code points."""
    parts = [_class_char(a) if a == b else f"{_class_char(a)}-{_class_char(b)}" for a, b in ranges]
    return f"[{'^' if negated else ''}{''.join(parts)}]"


def _class_char(code: int) -> str:
    char = chr(code)
    if char in "\\]-^[":
        return "\\" + char
    return char if char.isprintable() and char != '"' else _code(char)
