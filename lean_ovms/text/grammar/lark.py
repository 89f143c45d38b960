"""A grammar in Lark's notation as one regular expression, in the dialect of regex.py, or as rules in EBNF.

https://lark-parser.readthedocs.io/en/stable/grammar.html, as far as OpenAI's custom tools use it
(https://platform.openai.com/docs/guides/function-calling#context-free-grammars); also %json and a rule's [capture] of
llguidance (https://github.com/guidance-ai/llguidance/blob/main/docs/syntax.md). A rule that contains itself is no
regular expression, and %ignore puts a choice between any two symbols: both are for EBNF only. Templates and flags of
expressions are refused. Pure text; knows no tools.
"""

from __future__ import annotations

import json

from .ebnf import Ebnf
from .lark_tokens import COMMON, Token, inside_of, tokens, value_of
from .lark_writers import PatternWriter, RuleWriter, Writer
from .regex import MAX_COUNT, NotSupported

MAX_DEPTH = 30

_COUNTS = {"*": (0, None), "+": (1, None), "?": (0, 1)}


def as_pattern(definition: str) -> str:
    """A regular expression for the texts of the rule `start`, without anchors. Raises NotSupported."""
    return _Inlined(definition).rule("start")


def root(definition: str, ebnf: Ebnf) -> str:
    """An expression in EBNF for the texts of the rule `start`, or of the first. Raises NotSupported."""
    return _Rules(definition, ebnf).whole()


def is_lark(grammar: str) -> bool:
    """Whether a grammar is in Lark's notation, not in EBNF: its rules have a colon."""
    return "::=" not in grammar and ":" in grammar


class _Grammar:
    """Its rules and terminals: the tokens of each, and the common terminals that it imports."""

    def __init__(self, text: str, writer: Writer) -> None:
        self.writer = writer
        self.ignored: list[list[Token]] = []
        self.open: list[str] = []
        self._bodies: dict[str, list[Token]] = {}
        self._imported: dict[str, str] = {}
        line: list[Token] = []
        for token in tokens(text):
            if token.kind != "end":
                line.append(token)
            elif line:
                self._statement(line)
                line = []

    def _statement(self, line: list[Token]) -> None:
        if line[0].text == "%ignore":
            self.ignored.append(line[1:])
            return
        if line[0].kind == "statement":
            self._import(line)
            return
        name, *rest = line
        if len(rest) > 1 and rest[0].text == "." and rest[1].kind == "number":
            rest = rest[2:]  # a priority decides between parses of one text, not which texts there are
        if rest and rest[0].text == "[":
            rest = _without_capture(rest)
        if name.kind != "name" or not rest or rest[0].text != ":":
            raise NotSupported(f"Lark: {name.text!r} begins no rule")
        self._bodies[name.text.lstrip("!?")] = rest[1:]

    def _import(self, line: list[Token]) -> None:
        """%import common.NAME, with -> OTHER, or common (NAME, NAME)."""
        words = [token.text for token in line]
        names = [word for word in words[3:] if word not in "(),"]
        if words[:2] != ["%import", "common"] or not names:
            raise NotSupported(f"Lark: {' '.join(words[:4])}")
        if "->" in names:
            names = [names[0], names[-1]]
        wanted, called = (names[:1], names[1:]) if "->" in words else (names, names)
        for name, as_name in zip(wanted, called, strict=True):
            if name not in COMMON:
                raise NotSupported(f"Lark: common.{name}")
            self._imported[as_name] = COMMON[name]

    def first(self) -> str:
        """The name of the rule that is the whole."""
        return "start" if "start" in self._bodies else next(iter(self._bodies), "start")

    def written(self, name: str) -> str:
        """What the rule's body is. Raises NotSupported."""
        if name in self._imported:
            return self.writer.pattern(self._imported[name])
        if name not in self._bodies or len(self.open) > MAX_DEPTH:
            raise NotSupported(f"Lark: {name} is not defined" if name not in self._bodies else "Lark: too deep")
        self.open.append(name)
        found = _Body(self, self._bodies[name], lexed=name.lstrip("_")[:1].islower()).whole()
        self.open.pop()
        return found

    def rule(self, name: str) -> str:
        """An expression that stands for a rule."""
        raise NotImplementedError

    def after_terminal(self) -> str:
        """What may follow any terminal; "" if nothing."""
        return ""


def _without_capture(tokens: list[Token]) -> list[Token]:
    """The rest after [capture] or [capture="name"], which name a part of the output. Raises NotSupported."""
    end = next((at for at, token in enumerate(tokens) if token.text == "]"), len(tokens))
    attributes = [token.text for token in tokens[1:end] if token.kind == "name"]
    if others := [name for name in attributes if name != "capture"]:
        raise NotSupported(f"Lark: a rule's attribute {others[0]}")
    return tokens[end + 1 :]


class _Inlined(_Grammar):
    """Every rule written out where it is used."""

    def __init__(self, text: str) -> None:
        super().__init__(text, PatternWriter())
        self._known: dict[str, str] = {}
        if self.ignored:
            raise NotSupported("Lark: %ignore")

    def rule(self, name: str) -> str:
        if name not in self._known:
            if name in self.open:
                raise NotSupported(f"Lark: {name} contains itself")
            self._known[name] = self.written(name)
        return self._known[name]


class _Rules(_Grammar):
    """A rule in EBNF for each."""

    def __init__(self, text: str, ebnf: Ebnf) -> None:
        self._ebnf = ebnf
        super().__init__(text, RuleWriter(self._ebnf))
        self._names: dict[str, str] = {}
        self._between = ""
        if self.ignored:
            options = [_Body(self, tokens, lexed=False).whole() for tokens in self.ignored]
            self._between = self._ebnf.rule("ignored", f"({self.writer.either(options)})*")

    def rule(self, name: str) -> str:
        if name not in self._names:
            self._names[name] = self._ebnf.name(name)
            self._ebnf.define(self._names[name], self.written(name))
        return self._names[name]

    def after_terminal(self) -> str:
        return self._between

    def whole(self) -> str:
        """The expression of the first rule."""
        return f"{self._between} {self.rule(self.first())}".strip()


class _Body:
    """What is right of a rule's colon. lexed: what is ignored may stand after its terminals."""

    def __init__(self, grammar: _Grammar, tokens: list[Token], *, lexed: bool) -> None:
        self._grammar = grammar
        self._writer = grammar.writer
        self._tokens = [*tokens, Token("end", "")]
        self._after = grammar.after_terminal() if lexed else ""
        self._at = 0
        self._depth = 0

    def whole(self) -> str:
        found = self._alternatives()
        if self._next().kind != "end":
            raise NotSupported(f"Lark: unexpected {self._tokens[self._at - 1].text!r}")
        return found

    def _peek(self) -> str:
        return self._tokens[self._at].text

    def _next(self) -> Token:
        self._at += 1
        return self._tokens[self._at - 1]

    def _alternatives(self) -> str:
        options = [self._sequence()]
        while self._tokens[self._at].kind == "alternative":
            self._at += 1
            options.append(self._sequence())
        return self._writer.either(options)

    def _sequence(self) -> str:
        items = []
        while self._tokens[self._at].kind in ("string", "regex", "name", "json") or self._peek() in ("(", "["):
            items.append(self._repeated(self._atom()))
        if self._peek() == "->":  # a name for the parse tree
            self._at += 2
        return self._writer.series(items)

    def _atom(self) -> str:
        token = self._next()
        if token.text in ("(", "["):
            return self._group(")" if token.text == "(" else "]")
        if token.kind == "name" and self._peek() == "{":
            raise NotSupported("Lark: templates")
        found = self._symbol(token)
        terminal = token.kind != "name" or token.text.lstrip("_")[:1].isupper()
        return f"({found} {self._after})" if self._after and terminal else found

    def _symbol(self, token: Token) -> str:
        if token.kind == "regex":
            return self._writer.pattern(inside_of(token.text))
        if token.kind == "json":
            return self._writer.json(json.loads(token.text))
        return self._string(token.text) if token.kind == "string" else self._grammar.rule(token.text)

    def _group(self, end: str) -> str:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise NotSupported("Lark: too deep")
        inside = self._alternatives()
        if self._next().text != end:
            raise NotSupported(f"Lark: a {end} is missing")
        self._depth -= 1
        return self._writer.group(inside) if end == ")" else self._writer.repeat(inside, 0, 1)

    def _string(self, text: str) -> str:
        if self._peek() != "..":
            return self._writer.text(value_of(text.removesuffix("i")), any_case=text.endswith("i"))
        self._at += 1
        low, high = value_of(text), value_of(self._next().text)
        if len(low) != 1 or len(high) != 1:
            raise NotSupported("Lark: a range is of single characters")
        return self._writer.span(low, high)

    def _repeated(self, item: str) -> str:
        mark = self._peek()
        if mark in _COUNTS:
            self._at += 1
            return self._writer.repeat(item, *_COUNTS[mark])
        if mark != "~":
            return item
        self._at += 1
        least = most = self._count()
        if self._peek() == "..":
            self._at += 1
            most = self._count()
        return self._writer.repeat(item, least, most)

    def _count(self) -> int:
        token = self._next()
        if token.kind != "number":
            raise NotSupported("Lark: ~ needs a number")
        if len(token.text) > 6 or int(token.text) > MAX_COUNT:
            raise NotSupported(f"Lark: a count beyond {MAX_COUNT}")
        return int(token.text)
