"""A grammar in Lark's notation as one regular expression, in the dialect of regex.py.

https://lark-parser.readthedocs.io/en/stable/grammar.html, as far as OpenAI's custom tools use it
(https://platform.openai.com/docs/guides/function-calling#context-free-grammars). A rule that contains itself is no
regular expression, and %ignore would put a choice between any two symbols: both are refused, as are templates and flags
of expressions. Pure text; knows no tools.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from .regex import NotSupported

MAX_CHARACTERS = 20_000
"""Of the expression: each use of a rule is written out."""
MAX_DEPTH = 30

COMMON = {
    "DIGIT": "[0-9]",
    "HEXDIGIT": "[a-fA-F0-9]",
    "INT": "[0-9]+",
    "SIGNED_INT": "[+\\-]?[0-9]+",
    "DECIMAL": "(?:[0-9]+\\.[0-9]*|\\.[0-9]+)",
    "FLOAT": "(?:[0-9]+[eE][+\\-]?[0-9]+|(?:[0-9]+\\.[0-9]*|\\.[0-9]+)(?:[eE][+\\-]?[0-9]+)?)",
    "SIGNED_FLOAT": "[+\\-]?(?:[0-9]+[eE][+\\-]?[0-9]+|(?:[0-9]+\\.[0-9]*|\\.[0-9]+)(?:[eE][+\\-]?[0-9]+)?)",
    "NUMBER": "(?:[0-9]+(?:\\.[0-9]*)?|\\.[0-9]+)(?:[eE][+\\-]?[0-9]+)?",
    "SIGNED_NUMBER": "[+\\-]?(?:[0-9]+(?:\\.[0-9]*)?|\\.[0-9]+)(?:[eE][+\\-]?[0-9]+)?",
    "ESCAPED_STRING": '"(?:[^"\\\\\\n\\r]|\\\\[^\\n\\r])*"',
    "LCASE_LETTER": "[a-z]",
    "UCASE_LETTER": "[A-Z]",
    "LETTER": "[A-Za-z]",
    "WORD": "[A-Za-z]+",
    "CNAME": "[A-Za-z_][A-Za-z0-9_]*",
    "WS_INLINE": "[ \\t]+",
    "WS": "[ \\t\\f\\r\\n]+",
    "CR": "\\r",
    "LF": "\\n",
    "NEWLINE": "(?:\\r?\\n)+",
}
"""The terminals of Lark's own library (lark/grammars/common.lark)."""

_TOKEN = re.compile(
    r"""
    (?P<skip> [ \t\f]+ | (?://|\#)[^\n]* )
  | (?P<alternative> (?:\r?\n\s*)*\| )
  | (?P<end> \r?\n )
  | (?P<string> "(?:\\.|[^"\\\n])*"i? )
  | (?P<regex> /(?!/)(?:\\.|[^/\\\n])+/[a-z]* )
  | (?P<statement> %[a-z]+ )
  | (?P<name> [!?]*_*[A-Za-z][A-Za-z0-9_]* )
  | (?P<number> [0-9]+ )
  | (?P<mark> -> | \.\. | [:()\[\]{}~*+?.,] )
    """,
    re.VERBOSE,
)
_ESCAPE = re.compile(r"\\(x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|.)", re.DOTALL)
_ESCAPED = {"n": "\n", "r": "\r", "t": "\t", "f": "\f", "v": "\v"}


@dataclass(frozen=True, slots=True)
class _Token:
    kind: str
    text: str


def as_pattern(definition: str) -> str:
    """A regular expression for the texts of the rule `start`, without anchors. Raises NotSupported."""
    return _Grammar(definition).rule("start")


def _tokens(text: str) -> Iterator[_Token]:
    at = 0
    while at < len(text):
        found = _TOKEN.match(text, at)
        if found is None:
            raise NotSupported(f"Lark: unexpected {text[at : at + 20]!r}")
        at = found.end()
        if found.lastgroup != "skip":
            yield _Token(found.lastgroup or "", found[0])
    yield _Token("end", "\n")


class _Grammar:
    """Its rules and terminals: the tokens of each until it is used, then its expression."""

    def __init__(self, text: str) -> None:
        self._bodies: dict[str, list[_Token]] = {}
        self._patterns: dict[str, str] = {}
        self._open: list[str] = []
        line: list[_Token] = []
        for token in _tokens(text):
            if token.kind != "end":
                line.append(token)
            elif line:
                self._statement(line)
                line = []

    def _statement(self, line: list[_Token]) -> None:
        if line[0].kind == "statement":
            self._import(line)
            return
        name, *rest = line
        if len(rest) > 1 and rest[0].text == "." and rest[1].kind == "number":
            rest = rest[2:]  # a priority decides between parses of one text, not which texts there are
        if name.kind != "name" or not rest or rest[0].text != ":":
            raise NotSupported(f"Lark: {name.text!r} begins no rule")
        self._bodies[name.text.lstrip("!?")] = rest[1:]

    def _import(self, line: list[_Token]) -> None:
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
            self._patterns[as_name] = COMMON[name]

    def rule(self, name: str) -> str:
        """Its expression."""
        if name not in self._patterns:
            if name in self._open:
                raise NotSupported(f"Lark: {name} contains itself")
            if name not in self._bodies or len(self._open) > MAX_DEPTH:
                raise NotSupported(f"Lark: {name} is not defined" if name not in self._bodies else "Lark: too deep")
            self._open.append(name)
            self._patterns[name] = _Body(self, self._bodies[name]).whole()
            self._open.pop()
        return self._patterns[name]


class _Body:
    """What is right of a rule's colon."""

    def __init__(self, grammar: _Grammar, tokens: list[_Token]) -> None:
        self._grammar = grammar
        self._tokens = [*tokens, _Token("end", "")]
        self._at = 0
        self._depth = 0

    def whole(self) -> str:
        found = self._alternatives()
        if self._next().kind != "end":
            raise NotSupported(f"Lark: unexpected {self._tokens[self._at - 1].text!r}")
        return found

    def _peek(self) -> str:
        return self._tokens[self._at].text

    def _next(self) -> _Token:
        self._at += 1
        return self._tokens[self._at - 1]

    def _alternatives(self) -> str:
        options = [self._sequence()]
        while self._tokens[self._at].kind == "alternative":
            self._at += 1
            options.append(self._sequence())
        found = options[0] if len(options) == 1 else f"(?:{'|'.join(options)})"
        if len(found) > MAX_CHARACTERS:
            raise NotSupported(f"Lark: more than {MAX_CHARACTERS} characters as a regular expression")
        return found

    def _sequence(self) -> str:
        items = []
        while self._tokens[self._at].kind in ("string", "regex", "name") or self._peek() in ("(", "["):
            items.append(self._repeated(self._atom()))
        if self._peek() == "->":  # a name for the parse tree
            self._at += 2
        return "".join(items)

    def _atom(self) -> str:
        token = self._next()
        if token.text in ("(", "["):
            return self._group(")" if token.text == "(" else "]")
        if token.kind == "regex":
            return _regex(token.text)
        if token.kind == "string":
            return self._string(token.text)
        if self._peek() == "{":
            raise NotSupported("Lark: templates")
        return self._grammar.rule(token.text)

    def _group(self, end: str) -> str:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise NotSupported("Lark: too deep")
        inside = self._alternatives()
        if self._next().text != end:
            raise NotSupported(f"Lark: a {end} is missing")
        self._depth -= 1
        return inside if end == ")" else f"(?:{inside})?"

    def _string(self, text: str) -> str:
        if self._peek() != "..":
            return _literal(text)
        self._at += 1
        low, high = _value(text), _value(self._next().text)
        if len(low) != 1 or len(high) != 1:
            raise NotSupported("Lark: a range is of single characters")
        return f"[{_in_class(low)}-{_in_class(high)}]"

    def _repeated(self, item: str) -> str:
        mark = self._peek()
        if mark in ("*", "+", "?"):
            self._at += 1
            return f"(?:{item}){mark}"
        if mark != "~":
            return item
        self._at += 1
        least = most = self._count()
        if self._peek() == "..":
            self._at += 1
            most = self._count()
        return f"(?:{item}){{{least},{most}}}"

    def _count(self) -> str:
        token = self._next()
        if token.kind != "number":
            raise NotSupported("Lark: ~ needs a number")
        return token.text


def _regex(text: str) -> str:
    inside, _, flags = text[1:].rpartition("/")
    if flags:
        raise NotSupported(f"Lark: the flags {flags} of an expression")
    return f"(?:{inside})"


def _value(text: str) -> str:
    if not text.endswith('"'):
        raise NotSupported("Lark: a range is of single characters")
    return _ESCAPE.sub(_unescaped, text[1:-1])


def _unescaped(found: re.Match[str]) -> str:
    code = found[1]
    return chr(int(code[1:], 16)) if len(code) > 1 else _ESCAPED.get(code, code)


def _literal(text: str) -> str:
    any_case = text.endswith("i")
    chars = _value(text.removesuffix("i"))
    return "".join(
        f"[{char.lower()}{char.upper()}]" if any_case and len({char.lower(), char.upper()}) > 1 else _plain(char)
        for char in chars
    )


def _plain(char: str) -> str:
    return f"\\x{ord(char):02x}" if ord(char) < 32 else f"\\{char}" if char in r"\^$.|?*+()[]{}/" else char


def _in_class(char: str) -> str:
    return f"\\x{ord(char):02x}" if ord(char) < 32 else f"\\{char}" if char in r"\^]-[" else char
