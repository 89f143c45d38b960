"""The tokens of Lark's notation (lark.py): https://lark-parser.readthedocs.io/en/stable/grammar.html. Pure text."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass

from .regex import NotSupported

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
  | (?P<json> %(?:json|llguidance)\s*(?=\{) )
  | (?P<statement> %[a-z]+ )
  | (?P<name> [!?]*_*[A-Za-z][A-Za-z0-9_]* )
  | (?P<number> [0-9]+ )
  | (?P<mark> -> | \.\. | [:()\[\]{}~*+?.,=] )
    """,
    re.VERBOSE,
)
_ESCAPE = re.compile(r"\\(x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|.)", re.DOTALL)
_ESCAPED = {"n": "\n", "r": "\r", "t": "\t", "f": "\f", "v": "\v"}


@dataclass(frozen=True, slots=True)
class Token:
    kind: str
    text: str


def tokens(text: str) -> Iterator[Token]:
    at = 0
    while at < len(text):
        found = _TOKEN.match(text, at)
        if found is None:
            raise NotSupported(f"Lark: unexpected {text[at : at + 20]!r}")
        at = found.end()
        if found.lastgroup == "json":
            start, at = at, _json_end(text, at)
            if found[0].startswith("%json"):
                yield Token("json", text[start:at])
        elif found.lastgroup != "skip":
            yield Token(found.lastgroup or "", found[0])
    yield Token("end", "\n")


def _json_end(text: str, at: int) -> int:
    try:
        return json.JSONDecoder().raw_decode(text, at)[1]
    except ValueError:
        raise NotSupported(f"Lark: no JSON at {text[at : at + 20]!r}") from None


def inside_of(text: str) -> str:
    inside, _, flags = text[1:].rpartition("/")
    if flags:
        raise NotSupported(f"Lark: the flags {flags} of an expression")
    return inside


def value_of(text: str) -> str:
    if not text.endswith('"'):
        raise NotSupported("Lark: a range is of single characters")
    return _ESCAPE.sub(_unescaped, text[1:-1])


def _unescaped(found: re.Match[str]) -> str:
    code = found[1]
    return chr(int(code[1:], 16)) if len(code) > 1 else _ESCAPED.get(code, code)
