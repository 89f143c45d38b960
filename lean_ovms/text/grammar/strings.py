"""The insides of JSON strings as grammars: any characters, known formats, and names that are none of a list.

Knows no schemas.
"""

from __future__ import annotations

from .ebnf import Ebnf, char_class, either, literal, repeat

CHAR = (
    r'[^"\\\x00-\x1f\x7f] | "\\" (["\\/bfnrt] | '
    r'"u" ([0-9a-ce-fA-CE-F] [0-9a-fA-F]{3} | [dD] [0-7] [0-9a-fA-F]{2}))'
)
"""One character of a string, written as it is or (after " | ") as an escape. Codes of lone surrogates are left out:
they are not text."""
MAX_COUNT = 100
"""Of one counted repetition. XGrammar 0.1.31 writes out 128 items and counts the others while it matches: then it
looks at every token once for every number of items that the text may have had (200 characters, 150,000 tokens: 3 s a
mask; two repetitions of 100: 0.2 s; 2026-11)."""

_DATE = '[0-9]{4} "-" ("0" [1-9] | "1" [0-2]) "-" ("0" [1-9] | "1" [0-9] | "2" [0-8])'
_HOUR = '([01] [0-9] | "2" [0-3])'
_TIME = f'{_HOUR} ":" [0-5] [0-9] ":" [0-5] [0-9] ("." [0-9]{{1,6}})? ("Z" | [+-] {_HOUR} ":" [0-5] [0-9])'
_BYTE = '("0" | "1" ([0-9] [0-9]?)? | "2" ("5" [0-5]? | [0-46-9] | [0-4] [0-9])? | [3-9] [0-9]?)'
_HEX = "[0-9a-f]"
_FORMATS = {
    "date": _DATE,
    "time": _TIME,
    "date-time": f'{_DATE} "T" {_TIME}',
    "datetime": f'{_DATE} "T" {_TIME}',
    "uuid": ' "-" '.join(f"{_HEX}{{{n}}}" for n in (8, 4, 4, 4, 12)),
    "ipv4": f'{_BYTE} ("." {_BYTE}){{3}}',
    "email": '[a-z0-9] [a-z0-9._-]{0,31} "@" [a-z0-9] [a-z0-9-]{0,31} ("." [a-z]{2,8}){1,3}',
}
"""A safe part of each format: no 29th of any month, no address in quotes."""

_PLAIN = r"a-zA-Z0-9_. $@:\-"
_WORD = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_"
MAX_DEPTH = 48
MAX_EXCLUDED = 600
"""Characters of texts that a string must not be."""


def characters(ebnf: Ebnf, char: str, least: int, most: int | None) -> str:
    """least to most characters. char: one, as CHAR.

    Without an upper bound, characters that are no escapes are repeated as a class: of tokens in a class XGrammar knows
    in advance that they fit, where a rule ends within the token it has to read them (150,000 tokens: 5 ms a mask
    against 115; 2026-11).
    """
    one = ebnf.rule("char", char)
    if most is not None:
        return _counted(ebnf, one, least, most)
    plain, _, escape = char.partition(" | ")
    first = f"{_counted(ebnf, one, least, least)} " if least else ""
    return f"{first}{plain}* ({ebnf.rule('escape', escape)} {plain}*)*"


def _counted(ebnf: Ebnf, one: str, least: int, most: int) -> str:
    """A counted repetition in parts of MAX_COUNT: each is complete, or the last."""
    if most <= MAX_COUNT:
        return repeat(one, least, most)
    full = f"{repeat(one, MAX_COUNT, MAX_COUNT)} {_counted(ebnf, one, max(0, least - MAX_COUNT), most - MAX_COUNT)}"
    if least >= MAX_COUNT:
        return full
    return ebnf.choice([repeat(one, least, MAX_COUNT - 1), full])


def format_of(name: str) -> str | None:
    """The grammar of a JSON schema `format`; None for one that is not enforced."""
    return _FORMATS.get(name)


def outside(ebnf: Ebnf, words: list[str]) -> str:
    """A name of plain characters other than these words, as a trie of the points where it differs.

    A second value for a property would override the first, and need not have its type. Names have any length: XGrammar
    compiles every number of a repetition, 64 of them in 8 s with 150,000 tokens (without: 0.6 s; 2026-11).
    """
    plain = sorted({w for w in words if w and all((c.isalnum() and c.isascii()) or c in "_-. $@:" for c in w)})
    return ebnf.rule("name", _leaving(ebnf, plain, 0))


def excluding(ebnf: Ebnf, char: str, words: list[str]) -> str | None:
    """The inside of a JSON string that is any text but these; None where that cannot be written.

    As far as a text is the beginning of a word it has no escapes by which a letter could be written otherwise.
    """
    if sum(map(len, words)) > MAX_EXCLUDED or not all(c.isprintable() and c not in '"\\' for w in words for c in w):
        return None
    return _differing(ebnf, characters(ebnf, char, 0, None), words)


def _differing(ebnf: Ebnf, rest: str, words: list[str]) -> str:
    heads = sorted({word[0] for word in words if word})
    options = [] if "" in words else ['""']
    options += [
        f"{literal(head)} {ebnf.rule('text', _differing(ebnf, rest, [w[1:] for w in words if w[:1] == head]))}"
        for head in heads
    ]
    other = char_class(
        [(0, 31), (34, 34), (92, 92), (127, 127), *((ord(head), ord(head)) for head in heads)], negated=True
    )
    escape = ebnf.rule("escape", r'"\\" (["\\bfnrt] | "u00" ([01] [0-9a-fA-F] | "7" [fF]))')
    rest = ebnf.rule("rest", rest)
    return either([*options, f"{other} {rest}", f"{escape} {rest}"])


def _leaving(ebnf: Ebnf, words: list[str], depth: int) -> str:
    if not words:
        return f"[{_PLAIN}]{'*' if depth else '+'}"
    options = ['""'] if depth and "" not in words else []
    heads = sorted({w[0] for w in words if w})
    for head in heads:
        tails = [w[1:] for w in words if w[:1] == head]
        inner = _leaving(ebnf, tails, depth + 1) if depth < MAX_DEPTH else '""'
        options.append(f"{literal(head)} {ebnf.rule('name', inner)}")
    if allowed := "".join(c for c in _WORD if c not in heads):
        options.append(f"[{allowed}] [{_PLAIN}]*")
    return either(options or ['""'])
