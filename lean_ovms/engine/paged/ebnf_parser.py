"""XGrammar's EBNF (https://xgrammar.mlc.ai/docs/tutorials/ebnf_guided_generation.html), as text/grammar/ebnf.py
writes it and clients send it, to expressions.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from ...errors import GrammarInvalid

MAX_NESTING = 200


@dataclass(frozen=True, slots=True)
class Text:
    """Exactly this text."""

    text: str


@dataclass(frozen=True, slots=True)
class Chars:
    """One character in these ranges of code points, or outside of them."""

    ranges: tuple[tuple[int, int], ...]
    negated: bool


@dataclass(frozen=True, slots=True)
class Ref:
    """Another rule."""

    name: str


@dataclass(frozen=True, slots=True)
class Series:
    """One after the other."""

    parts: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Either:
    """One of these."""

    options: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Repeat:
    """So many times; most None is no end."""

    body: Node
    least: int
    most: int | None


@dataclass(frozen=True, slots=True)
class Until:
    """Any text up to and with the first of one of these."""

    ends: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Without:
    """Any text in which none of these is."""

    texts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Pattern:
    """What a regular expression of llguidance's kind matches."""

    pattern: str


Node = Text | Chars | Ref | Series | Either | Repeat | Until | Without | Pattern
Rules = dict[str, Node]
NOTHING = Series(())

_TOKEN = re.compile(
    r"""\s+|\#[^\n]*
    |(?P<text>"(?:[^"\\\n]|\\.)*")
    |(?P<chars>\[\^?(?:[^\]\\]|\\.)*\])
    |(?P<count>\{\s*\d+\s*(?:,\s*\d*\s*)?\})
    |(?P<name>[A-Za-z_][A-Za-z0-9_.-]*)
    |(?P<sign>::=|[()|*+?,=])""",
    re.VERBOSE | re.DOTALL,
)
_CODE = r"\\(?:x([0-9a-fA-F]{1,2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|u\{([0-9a-fA-F]+)\}|(.))"
_ESCAPE = re.compile(_CODE, re.DOTALL)
_PIECE = re.compile(_CODE + "|.", re.DOTALL)
_PLAIN = {"n": "\n", "r": "\r", "t": "\t", "f": "\f", "b": "\b", "v": "\v", "a": "\a", "0": "\0", "e": "\x1b"}


def parse(source: str) -> Rules:
    """The rules by name; `root` is the whole. Raises GrammarInvalid."""
    parser = _Parser(_tokens(source))
    rules = parser.rules()
    if "root" not in rules:
        raise GrammarInvalid("The grammar has no rule root")
    missing = sorted({ref for rule in rules.values() for ref in references(rule)} - set(rules))
    if missing:
        raise GrammarInvalid(f"The grammar has no rule {missing[0]}")
    return rules


def references(node: Node) -> list[str]:
    """The names of the rules in an expression, in order."""
    if isinstance(node, Ref):
        return [node.name]
    inner: tuple[Node, ...] = ()
    if isinstance(node, Series):
        inner = node.parts
    elif isinstance(node, Either):
        inner = node.options
    elif isinstance(node, Repeat):
        inner = (node.body,)
    return [name for part in inner for name in references(part)]


def _tokens(source: str) -> list[tuple[str, str]]:
    tokens, at = [], 0
    while at < len(source):
        found = _TOKEN.match(source, at)
        if found is None:
            line = source.count("\n", 0, at) + 1
            raise GrammarInvalid(f"The grammar cannot be read at line {line}: {source[at : at + 20]!r}")
        if found.lastgroup is not None:
            tokens.append((found.lastgroup, found[0]))
        at = found.end()
    return tokens


def _unescaped(text: str) -> str:
    return _ESCAPE.sub(_character, text)


def _character(found: re.Match[str]) -> str:
    code = found[1] or found[2] or found[3] or found[4]
    try:
        return chr(int(code, 16)) if code else _PLAIN.get(found[5], found[5])
    except (ValueError, OverflowError):
        raise GrammarInvalid(f"{found[0]} is no character") from None


def _class(source: str) -> Chars:
    """[^a-z\\n] to ranges."""
    body = source[1:-1]
    negated = body.startswith("^")
    pieces = [found[0] for found in _PIECE.finditer(body[negated:])]
    codes = [(ord(_unescaped(piece)), piece == "-") for piece in pieces]
    ranges, at = [], 0
    while at < len(codes):
        low = codes[at][0]
        if at + 2 < len(codes) and codes[at + 1][1]:
            ranges.append((low, codes[at + 2][0]))
            at += 3
        else:
            ranges.append((low, low))
            at += 1
    if any(low > high for low, high in ranges):
        raise GrammarInvalid(f"{source} has a range that ends before it begins")
    return Chars(tuple(ranges), negated)


class _Parser:
    """Recursive descent over tokens (kind, text)."""

    def __init__(self, tokens: list[tuple[str, str]]) -> None:
        self._tokens = [*tokens, ("end", "")]
        self._at = 0
        self._depth = 0

    def rules(self) -> Rules:
        rules: Rules = {}
        while self._peek()[0] != "end":
            name = self._expect("name")
            self._expect("sign", "::=")
            if self._ends() and not self._is("|"):
                raise GrammarInvalid(f"The grammar's rule {name} is empty")
            rules[name] = self._either()
        return rules

    def _peek(self, ahead: int = 0) -> tuple[str, str]:
        return self._tokens[min(self._at + ahead, len(self._tokens) - 1)]

    def _is(self, text: str) -> bool:
        return self._peek() == ("sign", text)

    def _take(self, text: str) -> bool:
        found = self._is(text)
        self._at += found
        return found

    def _expect(self, kind: str, text: str = "") -> str:
        found = self._peek()
        if found[0] != kind or (text and found[1] != text):
            raise GrammarInvalid(f"The grammar has {found[1] or 'its end'!r} where {text or kind} is expected")
        self._at += 1
        return found[1]

    def _either(self) -> Node:
        self._depth += 1
        if self._depth > MAX_NESTING:
            raise GrammarInvalid("The grammar is nested too deep")
        options = [self._series()]
        while self._take("|"):
            options.append(self._series())
        self._depth -= 1
        return options[0] if len(options) == 1 else Either(tuple(options))

    def _series(self) -> Node:
        parts = []
        while not self._ends():
            parts.append(self._repeated())
        return parts[0] if len(parts) == 1 else Series(tuple(parts))

    def _ends(self) -> bool:
        kind, text = self._peek()
        if kind == "end" or (kind == "sign" and text in "|),"):
            return True
        return kind == "name" and self._peek(1) == ("sign", "::=")

    def _repeated(self) -> Node:
        node = self._single()
        while True:
            if self._take("*"):
                node = Repeat(node, 0, None)
            elif self._take("+"):
                node = Repeat(node, 1, None)
            elif self._take("?"):
                node = Repeat(node, 0, 1)
            elif self._peek()[0] == "count":
                node = _counted(node, self._expect("count"))
            else:
                return node

    def _single(self) -> Node:
        kind, text = self._peek()
        if kind == "sign" and text == "(":
            self._at += 1
            if self._is("="):
                raise GrammarInvalid("The grammar looks ahead, which cannot be imposed here")
            node = self._either()
            self._expect("sign", ")")
            return node
        if kind == "text":
            return Text(_unescaped(self._expect("text")[1:-1]))
        if kind == "chars":
            return _class(self._expect("chars"))
        name = self._expect("name")
        return self._dispatch() if name == "TagDispatch" else Ref(name)

    def _dispatch(self) -> Node:
        """TagDispatch(("trigger", rule), ..., option=value, ...)."""
        self._expect("sign", "(")
        tags: list[tuple[str, Node]] = []
        options: dict[str, object] = {}
        while not self._take(")"):
            if self._take("("):
                trigger = _unescaped(self._expect("text")[1:-1])
                self._expect("sign", ",")
                tags.append((trigger, Ref(self._expect("name"))))
                self._expect("sign", ")")
            else:
                name = self._expect("name")
                self._expect("sign", "=")
                options[name] = self._value()
            self._take(",")
        return _dispatched(tags, options)

    def _value(self) -> object:
        if self._take("("):
            texts = []
            while not self._take(")"):
                texts.append(_unescaped(self._expect("text")[1:-1]))
                self._take(",")
            return tuple(texts)
        return self._expect("name") == "true"


def _counted(node: Node, count: str) -> Node:
    least, comma, most = count[1:-1].partition(",")
    low = int(least)
    high = (int(most) if most.strip() else None) if comma else low
    if high is not None and high < low:
        raise GrammarInvalid(f"{count} ends before it begins")
    return Repeat(node, low, high)


def _dispatched(tags: list[tuple[str, Node]], options: dict[str, object]) -> Node:
    stops = options.get("stop_str", ())
    assert isinstance(stops, tuple)
    if not tags:
        return Until(stops) if stops else Without(())
    triggers = tuple(trigger for trigger, _ in tags)
    free = Without(triggers)  # no other trigger before the one that is followed
    called = Either(tuple(Series((free, Text(trigger), then)) for trigger, then in tags))
    most = None if options.get("loop_after_dispatch", True) else 1
    rest: Node = Until(stops) if stops else Without(triggers)
    return Series((Repeat(called, 0, most), rest))
