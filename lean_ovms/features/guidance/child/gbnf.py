"""Translates llama.cpp's grammars (GBNF) to llguidance's Lark.

https://github.com/ggml-org/llama.cpp/blob/master/grammars/README.md. A rule becomes a terminal if neither it nor a rule
to which it refers is recursive, since llguidance matches a terminal many times faster than rules.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable

from ....errors import GrammarInvalid

_TOKEN = re.compile(
    r"""(?P<blank>(?:[ \t]|\#[^\r\n]*)+) | (?P<newline>\r\n?|\n) | (?P<literal>"(?:[^"\\]|\\.)*") |
    (?P<chars>\[(?:[^\]\\]|\\.)*\]) | (?P<define>::=) | (?P<name>[\w-]+) |
    (?P<count>\{[^{}]*\}) | (?P<mark>[|()*+?.])""",
    re.VERBOSE | re.DOTALL,
)
_CHAR = re.compile(r'\\x([0-9a-fA-F]{2})|\\u([0-9a-fA-F]{4})|\\U([0-9a-fA-F]{8})|\\([nrt"\\\[\]])|([^\\])', re.DOTALL)
_NAMED = {"n": "\n", "r": "\r", "t": "\t"}
ANY, EMPTY = "/(?s:.)/", '""'
"""Any character, and no text, in Lark."""


class _Reference(str):
    """The name of a rule in the body of another one."""


Body = list[str]
"""Parts of Lark, and references to rules."""


def to_lark(text: str) -> str:
    """Translates a grammar. Raises GrammarInvalid."""
    rules = _Parser(text).rules()
    if "root" not in rules:
        raise GrammarInvalid("The grammar cannot be read: there is no rule root")
    references = {name: {part for part in body if isinstance(part, _Reference)} for name, body in rules.items()}
    if missing := set().union(*references.values()) - rules.keys():
        raise GrammarInvalid(f"The grammar cannot be read: there is no rule {min(missing)}")
    terminals = _terminals(references)
    names = {name: f"{'T' if name in terminals else 'r'}{number}" for number, name in enumerate(rules)}
    lines = [f"start: {names['root']}"]
    for name, body in rules.items():
        parts = (names[part] if isinstance(part, _Reference) else part for part in body)
        lines.append(f"{names[name]}: {' '.join(parts)}")
    return "\n".join(lines) + "\n"


def _terminals(references: dict[str, set[_Reference]]) -> set[str]:
    """Returns the rules that do not depend on themselves, nor on rules that do, given the references of each rule."""
    users: dict[str, list[str]] = {name: [] for name in references}
    for name, used in references.items():
        for one in used:
            users[one].append(name)
    open_references = {name: len(used) for name, used in references.items()}
    found = [name for name, count in open_references.items() if not count]
    for name in found:  # the list grows while it is walked
        for user in users[name]:
            open_references[user] -= 1
            if not open_references[user]:
                found.append(user)
    return set(found)


def _invalid(line: int, reason: str) -> GrammarInvalid:
    return GrammarInvalid(f"The grammar cannot be read: line {line}: {reason}")


class _Parser:
    """Reads a grammar token by token."""

    def __init__(self, text: str) -> None:
        self._tokens = list(_tokens(text))
        self._at = 0

    def rules(self) -> dict[str, Body]:
        """Returns the body of each rule. Of several rules with one name the last one counts, as in llama.cpp."""
        found: dict[str, Body] = {}
        self._skip(newlines=True)
        while self._kind:
            name = self._take("name", "the name of a rule")
            self._skip()
            self._take("define", "::=")
            self._skip(newlines=True)
            found[name] = self._alternatives(nested=False)
            if self._kind:
                self._take("newline", "the end of the rule")
            self._skip(newlines=True)
        return found

    @property
    def _kind(self) -> str:
        """The kind of the next token; "" at the end."""
        return self._tokens[self._at][0]

    @property
    def _word(self) -> str:
        """The text of the next token."""
        return self._tokens[self._at][1]

    def _take(self, kind: str, wanted: str) -> str:
        if self._kind != kind:
            raise self._wrong(wanted)
        self._at += 1
        return self._tokens[self._at - 1][1]

    def _wrong(self, wanted: str) -> GrammarInvalid:
        _, word, line = self._tokens[self._at]
        return _invalid(line, f"{wanted} is expected, not {word[:40] or 'the end'}")

    def _skip(self, *, newlines: bool = False) -> None:
        while self._kind == "blank" or (newlines and self._kind == "newline"):
            self._at += 1

    def _alternatives(self, *, nested: bool) -> Body:
        body = self._sequence(nested=nested)
        while self._at_alternative():
            self._take("mark", "|")
            self._skip(newlines=True)
            body += ["|", *self._sequence(nested=nested)]
        return body

    def _at_alternative(self) -> bool:
        """Returns whether another alternative follows, whose | may begin a line (XGrammar), and goes to this |."""
        here = self._at
        self._skip(newlines=True)
        found = self._word == "|"
        self._at = self._at if found else here
        return found

    def _sequence(self, *, nested: bool) -> Body:
        body: Body = []
        while (one := self._element()) is not None:
            self._skip(newlines=nested)
            body += self._repeated(one)
            self._skip(newlines=nested)
        return body or [EMPTY]

    def _element(self) -> Body | None:
        """Returns the next element of a sequence without its quantifier, or None at the end of the sequence."""
        kind, word, line = self._tokens[self._at]
        if word == "(":
            self._at += 1
            self._skip(newlines=True)
            inside = self._alternatives(nested=True)
            if self._word != ")":
                raise self._wrong(")")
            self._at += 1
            return ["(", *inside, ")"]
        if kind not in ("literal", "chars", "name") and word != ".":
            return None
        self._at += 1
        if kind == "name":
            return [_Reference(word)]
        if word == ".":
            return [ANY]
        chars = _chars(word[1:-1], line)
        return [_literal(chars) if kind == "literal" else _class(chars, word, line)]

    def _repeated(self, one: Body) -> Body:
        """Returns an element with its quantifier, if it has one."""
        kind, word, line = self._tokens[self._at]
        if kind != "count" and word not in ("*", "+", "?"):
            return one
        self._at += 1
        if kind == "count":
            least, most = _range(word, line)
            if most == 0:
                return [EMPTY]
            word = f"{{{least},{'' if most is None else most}}}"
        return [*one, word]


def _range(word: str, line: int) -> tuple[int, int | None]:
    """Returns the least and the greatest number of repetitions, None for any. Raises GrammarInvalid."""
    first, comma, second = (part.strip() for part in word[1:-1].partition(","))
    try:
        least = _count(first)
        most = least if not comma else _count(second) if second else None
    except ValueError:
        most, least = -1, 0
    if most is not None and most < least:
        raise _invalid(line, f"{word[:40]} is not a number of repetitions")
    return least, most


def _count(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) < 10):
        raise ValueError
    return int(text)


def _tokens(text: str) -> Iterable[tuple[str, str, int]]:
    """Yields the kind, the text and the line of each token, and at the end an empty one. Raises GrammarInvalid."""
    at, line = 0, 1
    while at < len(text):
        found = _TOKEN.match(text, at)
        if found is None:
            raise _invalid(line, f"{text[at : at + 20].splitlines()[0]} is not expected")
        yield found.lastgroup or "", found[0], line
        line += found[0].count("\n")
        at = found.end()
    yield "", "", line


def _chars(text: str, line: int) -> list[tuple[str, bool]]:
    """Returns the characters of a literal or a class, and whether each is an escape sequence. Raises GrammarInvalid."""
    found, at = list[tuple[str, bool]](), 0
    while at < len(text):
        one = _CHAR.match(text, at)
        if one is None:
            raise _invalid(line, f"{text[at : at + 2]} is not an escape sequence")
        two, four, eight, named, plain = one.groups()
        if code := two or four or eight:
            number = int(code, 16)
            if 0xD800 <= number < 0xE000 or number > sys.maxunicode:
                raise _invalid(line, f"{one[0]} is not a character")
            found.append((chr(number), True))
        else:
            found.append((plain, False) if plain else (_NAMED.get(named, named), True))
        at = one.end()
    return found


def _literal(chars: list[tuple[str, bool]]) -> str:
    return json.dumps("".join(char for char, _ in chars)).replace("\x7f", "\\u007f")


def _class(chars: list[tuple[str, bool]], word: str, line: int) -> str:
    """Returns a class of characters as a regular expression. Raises GrammarInvalid."""
    inverted = chars[:1] == [("^", False)]
    chars, found, at = chars[inverted:], "", 0
    while at < len(chars):
        first = last = chars[at][0]
        if at + 2 < len(chars) and chars[at + 1] == ("-", False):
            last, at = chars[at + 2][0], at + 2
        if first > last:
            raise _invalid(line, f"{word[:40]} has a range that ends before it begins")
        found += _in_class(first) if first == last else f"{_in_class(first)}-{_in_class(last)}"
        at += 1
    if not found and not inverted:
        raise _invalid(line, "[] contains no character")
    return f"/[{'^' if inverted else ''}{found}]/" if found else ANY


def _in_class(char: str) -> str:
    return char if char.isascii() and char.isalnum() else f"\\x{{{ord(char):X}}}"
