"""Converts the grammar of a custom tool, in either of OpenAI's two syntaxes, to a regular expression of its text.

https://platform.openai.com/docs/guides/function-calling#context-free-grammars. In the tool calls of most model families
the text is a JSON string, for which grammar libraries can enforce a regular expression only. So a Lark grammar is
converted if it is regular; recursive rules, %ignore and templates are refused.
"""

from __future__ import annotations

import importlib
import re
import sys

from ...errors import GrammarInvalid

SYNTAXES = ("regex", "lark")
MAX_CHARACTERS = 20_000
"""The limit for the pattern: a rule is written out wherever another one names it."""
MAX_DEFINITIONS = 100_000
"""The limit for the grammars of one request in all; reading so many characters takes 0.3 s (2026-11)."""
COMMON = {
    "DIGIT": "[0-9]",
    "INT": "[0-9]+",
    "SIGNED_INT": "[+-]?[0-9]+",
    "DECIMAL": "(?:[0-9]+\\.[0-9]*|\\.[0-9]+)",
    "FLOAT": "(?:[0-9]+[eE][+-]?[0-9]+|(?:[0-9]+\\.[0-9]*|\\.[0-9]+)(?:[eE][+-]?[0-9]+)?)",
    "NUMBER": "(?:[0-9]+|[0-9]+\\.[0-9]*|\\.[0-9]+)(?:[eE][+-]?[0-9]+)?",
    "SIGNED_NUMBER": "[+-]?(?:[0-9]+|[0-9]+\\.[0-9]*|\\.[0-9]+)(?:[eE][+-]?[0-9]+)?",
    "LETTER": "[A-Za-z]",
    "WORD": "[A-Za-z]+",
    "CNAME": "[_A-Za-z][_A-Za-z0-9]*",
    "ESCAPED_STRING": '"(?:[^"\\\\\\n]|\\\\.)*"',
    "WS": "[ \\t\\f\\r\\n]+",
    "WS_INLINE": "[ \\t]+",
    "LF": "\\n",
    "CR": "\\r",
    "NEWLINE": "(?:\\r?\\n)+",
}
_ESCAPE = re.compile(r"\\(?:[xu]([0-9a-fA-F]{4}|[0-9a-fA-F]{2})|(.))", re.DOTALL)
_NAMED = {"n": "\n", "t": "\t", "r": "\r", "f": "\f"}
_TOKEN = re.compile(
    r'[ \t]*(?:(?://|#)[^\n]*|(?P<line>\n\s*(?![\s|]))|\n\s*|(?P<text>"(?:[^"\\\n]|\\.)*"i?)|/(?P<regex>(?:[^/\\\n]|\\.)+)/'
    r"(?P<flags>[a-z]*)|(?P<count>~\s*[0-9]+(?:\s*\.\.\s*[0-9]+)?)|(?P<range>\.\.)|(?P<name>[?!]?[A-Za-z_][A-Za-z0-9_]*(?:\.-?[0-9]+(?=\s*:))?)"
    r"|(?P<statement>%[a-z]+[^\n]*)|(?P<sign>[:|()\[\]?*+]|->[ \t]*\w+))"
)


_parser = importlib.import_module("re._parser" if sys.version_info >= (3, 11) else "sre_parse")
"""Checks a regular expression. To compile it as well takes 10 ms for every [a-\\uffff] (2026-11)."""


class ToolGrammars:
    """Converts the grammars of one request, whose length is limited in all."""

    def __init__(self) -> None:
        self._left = MAX_DEFINITIONS

    def pattern(self, syntax: object, definition: object) -> str:
        """Converts a grammar. Raises GrammarInvalid if it is not valid or not regular, or too long with the others."""
        self._left -= len(definition) if isinstance(definition, str) else 0
        if self._left < 0:
            raise GrammarInvalid(f"the grammars of all tools have more than {MAX_DEFINITIONS} characters")
        return pattern(syntax, definition)


def pattern(syntax: object, definition: object) -> str:
    """Converts a grammar to the pattern of a JSON schema. Raises GrammarInvalid if it is not valid or not regular."""
    if syntax not in SYNTAXES or not isinstance(definition, str):
        raise GrammarInvalid(f"it must have a definition, and a syntax that is one of: {', '.join(SYNTAXES)}")
    try:
        expression = definition if syntax == "regex" else _Lark(definition).rule("start")
        if len(expression) > MAX_CHARACTERS:
            raise GrammarInvalid("the grammar is too long")
        _parser.parse(expression)
        expression.encode()
    except UnicodeEncodeError:
        raise GrammarInvalid("a character is half of a surrogate pair") from None
    except (re.error, OverflowError) as error:
        raise GrammarInvalid(f"it is not a regular expression: {error}") from None
    except RecursionError:
        raise GrammarInvalid("the grammar is nested too deeply") from None
    return f"^(?:{expression})$"


Token = tuple[str, str]


class _Lark:
    """A parsed Lark grammar, whose rules are written out as regular expressions."""

    def __init__(self, text: str) -> None:
        self._bodies: dict[str, list[Token]] = {}
        self._common: dict[str, str] = {}
        self._written: dict[str, str] = {}  # the rules whose expressions are known
        self._open: list[str] = []
        line: list[Token] = []
        for token in [*_tokens(text), ("line", "")]:
            if token[0] == "statement":
                self._statement(token[1])
            elif token[0] != "line":
                line.append(token)
            elif line:
                if len(line) < 2 or line[0][0] != "name" or line[1] != ("sign", ":"):
                    raise GrammarInvalid("a line of the grammar is not a rule")
                self._bodies[line[0][1].lstrip("?!").partition(".")[0]] = line[2:]
                line = []

    def rule(self, name: str) -> str:
        """Returns a rule as a regular expression. Raises GrammarInvalid if it is missing or recursive."""
        if (known := self._common.get(name, self._written.get(name))) is not None:
            return known
        if name not in self._bodies:
            raise GrammarInvalid(f"the grammar has no rule {name}")
        if name in self._open:
            raise GrammarInvalid(f"the rule {name} is recursive, which is not supported in a custom tool's grammar")
        self._open.append(name)
        tokens = list(reversed(self._bodies[name]))
        found = self._either(tokens)
        if tokens:
            raise GrammarInvalid(f"the rule {name} is not closed")
        self._open.pop()
        self._written[name] = found
        return found

    def _statement(self, text: str) -> None:
        found = re.fullmatch(r"%import\s+common\s*(?:\.\s*(\w+)(?:\s*->\s*(\w+))?|\(([\w\s,]+)\))\s*", text)
        names = [name.strip() for name in (found[3] or found[1]).split(",")] if found is not None else []
        if not names or not set(names) <= set(COMMON):
            raise GrammarInvalid(f"{text[:40]!r} is not supported in a custom tool's grammar")
        assert found is not None
        self._common.update({found[2] or name: COMMON[name] for name in names})

    def _either(self, tokens: list[Token]) -> str:
        """Returns alternatives up to a closing bracket or the end as a regular expression.

        The tokens are in reversed order; those that are read are removed.
        """
        options, left = [""], MAX_CHARACTERS
        while tokens and tokens[-1] not in (("sign", ")"), ("sign", "]")):
            kind, text = tokens.pop()
            if (kind, text) == ("sign", "|"):
                options.append("")
                left -= 1
            elif not text.startswith("->"):
                part = self._counted(self._part(kind, text, tokens), tokens)
                options[-1] += part
                left -= len(part)
            if left < 0:
                raise GrammarInvalid("the grammar is too long")
        return options[0] if len(options) == 1 else f"(?:{'|'.join(options)})"

    def _part(self, kind: str, text: str, tokens: list[Token]) -> str:
        if kind == "name":
            return f"(?:{self.rule(text)})"
        if kind == "regex":
            return f"(?:{text})"
        if kind == "text":
            if tokens and tokens[-1][0] == "range":
                tokens.pop()
                ends = [_escaped(text), _escaped(tokens.pop()[1]) if tokens else ""]
                if any(len(end.removeprefix("\\")) != 1 for end in ends):
                    raise GrammarInvalid("a range in the grammar must be between single characters")
                return f"[{'-'.join(ends)}]"
            return f"(?:{_escaped(text)})"
        if kind == "sign" and text in "([":
            inner = self._either(tokens)
            if not tokens or tokens.pop()[1] != {"(": ")", "[": "]"}[text]:
                raise GrammarInvalid("a bracket in the grammar is not closed")
            return f"(?:{inner})" + ("?" if text == "[" else "")
        raise GrammarInvalid(f"unexpected {text!r} in the grammar")

    def _counted(self, part: str, tokens: list[Token]) -> str:
        while tokens and (tokens[-1][0] == "count" or tokens[-1] in (("sign", "?"), ("sign", "*"), ("sign", "+"))):
            kind, text = tokens.pop()
            part = f"(?:{part})" + (f"{{{','.join(re.findall('[0-9]+', text))}}}" if kind == "count" else text)
            if len(part) > MAX_CHARACTERS:
                raise GrammarInvalid("the grammar is too long")
        return part


def _tokens(text: str) -> list[Token]:
    found: list[Token] = []
    position, end = 0, len(text.rstrip())
    while position < end:
        token = _TOKEN.match(text, position)
        if token is None or token.end() == position:
            raise GrammarInvalid(f"the grammar cannot be parsed at {text[position : position + 20]!r}")
        position = token.end()
        if token["flags"]:
            raise GrammarInvalid("flags of regular expressions are not supported in a custom tool's grammar")
        if (kind := token.lastgroup) is not None:
            kind = "regex" if kind == "flags" else kind
            found.append((kind, token[kind]))
    return found


def _escaped(literal: str) -> str:
    """Returns the regular expression of a quoted text, which ignores case if an i follows the quotes."""
    body = _ESCAPE.sub(_character, literal[1 : literal.rindex('"')])
    return f"(?i:{re.escape(body)})" if literal.endswith("i") else re.escape(body)


def _character(escape: re.Match[str]) -> str:
    return chr(int(escape[1], 16)) if escape[1] else _NAMED.get(escape[2], escape[2])
