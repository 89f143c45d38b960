"""JSON values in the notations of some model families' arguments: Python, Gemma's, and text in XML.

Each is json_schema.JsonValues with other words, quotes and keys. Knows no families and no requests.
"""

from __future__ import annotations

import json
import re
from typing import Any

from ...types import Json
from .ebnf import literal, repeat, until
from .json_schema import JsonValues
from .schema_keywords import Schema
from .schema_merge import merge

IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
GEMMA_QUOTE = '<|"|>'


class PythonValues(JsonValues):
    """Python literals. Only escapes that Python and JSON share."""

    words = ("True", "False", "None")
    char = '[^"\\\\\\x00-\\x1f\\x7f] | "\\\\" ["\\\\nrt]'
    excludes = False

    def written(self, value: Any) -> str:
        return _python(value)


class RawValues(JsonValues):
    """A notation in which strings are plain text up to an end mark."""

    excludes = False

    def _raw(self, schema: Json, end: str) -> str:
        """A string and its end mark. With length bounds it has no "<": the mark could not be told from it."""
        self._ignore(schema, ("pattern",))
        least, most = self.lengths(schema)
        return until(end) if (least, most) == (0, None) else f"{repeat('[^<]', least, most)} {literal(end)}"


class XmlValues(RawValues):
    """JSON inside an element's text: without "<", so that the element's end is where the value ends."""

    char = '[^"\\\\<\\x00-\\x1f\\x7f] | "\\\\" ["\\\\/bfnrt]'

    def is_text(self, schema: Schema) -> bool:
        """Whether such a value is written as plain text."""
        whole = self._whole(schema)
        return not isinstance(whole, dict) or bool(_words(whole)) or self._strings(whole)

    def type_of(self, schema: Schema) -> str:
        """The name of the type of such a value, of which JSON has one for all numbers."""
        whole = self._whole(schema)
        kind = whole.get("type", "object") if isinstance(whole, dict) and not self.is_text(schema) else "string"
        kinds = kind if isinstance(kind, list) else [kind]
        kind = next((k for k in kinds if k != "null"), "null")
        return "number" if kind == "integer" else str(kind)

    def text_or_value(self, schema: Schema, end: str) -> str:
        """A value and its element's end: plain text where the schema allows strings, else JSON."""
        whole = self._whole(schema)
        if not isinstance(whole, dict):
            return f"{until(end)}"
        if words := _words(whole):
            return f"{self.ebnf.words(words)} {literal(end)}"
        if not self._strings(whole):
            return f"{self.value(schema)} {literal(end)}"
        if "oneOf" in whole:
            self.ignored.add("oneOf")
        return self.ebnf.rule("text", self._raw(whole, end))

    def _whole(self, schema: Schema) -> Schema:
        return merge({}, [schema], self.root) if isinstance(schema, dict) else schema

    def _strings(self, schema: Json, depth: int = 4) -> bool:
        """Whether a string may be a value."""
        for word in ("anyOf", "oneOf"):
            if isinstance(parts := schema.get(word), list) and depth:
                wholes = [self._whole(part) for part in parts]
                return any(not isinstance(w, dict) or self._strings(w, depth - 1) for w in wholes)
        if isinstance(choices := schema.get("enum"), list):
            return any(isinstance(c, str) for c in choices)
        kind = schema.get("type")
        if kind is None:
            return not any(w in schema for w in ("properties", "items", "minimum", "maximum", "const"))
        return "string" in (kind if isinstance(kind, list) else [kind])


def _words(whole: Json) -> list[str]:
    """The strings that the schema lists, if it lists strings only."""
    choices = [whole["const"]] if "const" in whole else whole.get("enum")
    words = [c for c in choices if isinstance(c, str)] if isinstance(choices, list) else []
    return words if words == choices else []


class GemmaValues(RawValues):
    """Gemma's notation: strings in <|"|>, bare keys, no blanks."""

    quote = GEMMA_QUOTE

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._blanks = '""'

    def string(self, schema: Json) -> str:
        return self.ebnf.rule("string", f"{literal(self.quote)} {self._raw(schema, self.quote)}")

    def written(self, value: Any) -> str:
        return _gemma(value, self.quote)

    def comma(self) -> str:
        return '","'

    def colon(self) -> str:
        return '":"'

    def member(self, name: str, schema: Schema) -> str:
        return self.ebnf.rule(
            name, f"{literal(_gemma_key(name, self.quote))} {self.colon()} {self.within(name, schema)}"
        )

    def other_key(self, taken: list[str]) -> str:
        return "[a-zA-Z_] [a-zA-Z0-9_]{0,63}"


class EscapeValues(GemmaValues):
    """The same with strings in <escape>, as FunctionGemma writes them."""

    quote = "<escape>"


def _python(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(k, ensure_ascii=False)}: {_python(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_python, value)) + "]"
    if value is None or isinstance(value, bool):
        return str(value)
    return json.dumps(value, ensure_ascii=False)


def _gemma(value: Any, quote: str) -> str:
    if isinstance(value, dict):
        return "{" + ",".join(f"{_gemma_key(k, quote)}:{_gemma(v, quote)}" for k, v in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(_gemma(item, quote) for item in value) + "]"
    return f"{quote}{value}{quote}" if isinstance(value, str) else json.dumps(value)


def _gemma_key(name: str, quote: str) -> str:
    return name if IDENTIFIER.fullmatch(name) else f"{quote}{name}{quote}"
