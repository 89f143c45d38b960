"""Structural tags, the JSON notation of grammars that a request comes with, to expressions.

The formats are XGrammar's (https://xgrammar.mlc.ai/docs/tutorials/structural_tag.html); text/grammar/ has put EBNF in
the place of every JSON schema before.
"""

from __future__ import annotations

import json
from typing import Any

from ...errors import GrammarInvalid
from . import ebnf_parser
from .ebnf_parser import NOTHING, Either, Node, Pattern, Ref, Repeat, Rules, Series, Text, Until, Without

MAX_NESTING = 64


def parse(tag: str) -> Rules:
    """The rules of a structural tag (JSON text); `root` is the whole. Raises GrammarInvalid."""
    try:
        form = json.loads(tag)["format"]
    except (ValueError, KeyError, TypeError):
        raise GrammarInvalid("The structural tag is not a JSON object with a format") from None
    reader = _Reader()
    reader.rules["root"] = reader.read(form, 0)
    return reader.rules


class _Reader:
    """Collects the rules of the grammars inside; their names get a number in front."""

    def __init__(self) -> None:
        self.rules: Rules = {}
        self._grammars = 0

    def read(self, form: Any, depth: int) -> Node:
        if not isinstance(form, dict) or depth > MAX_NESTING:
            raise GrammarInvalid("The structural tag has a format that is no object, or too deep")
        kind = form.get("type")
        method = getattr(self, f"_{kind}", None) if isinstance(kind, str) else None
        if method is None:
            raise GrammarInvalid(f"The format {kind!r} of structural tags cannot be imposed here")
        node: Node = method(form, depth + 1)
        return node

    def _grammar(self, form: Any, depth: int) -> Node:
        rules = ebnf_parser.parse(_text(form, "grammar"))
        self._grammars += 1
        mark = f"{self._grammars}_"
        self.rules |= {mark + name: _renamed(node, mark) for name, node in rules.items()}
        return Ref(mark + "root")

    def _const_string(self, form: Any, depth: int) -> Node:
        return Text(_text(form, "value"))

    def _regex(self, form: Any, depth: int) -> Node:
        return Pattern(_text(form, "pattern"))

    def _any_text(self, form: Any, depth: int) -> Node:
        return Without(_texts(form, "excludes"))

    def _sequence(self, form: Any, depth: int) -> Node:
        return Series(tuple(self.read(part, depth) for part in _list(form, "elements")))

    def _or(self, form: Any, depth: int) -> Node:
        return Either(tuple(self.read(part, depth) for part in _list(form, "elements")))

    def _tag(self, form: Any, depth: int) -> Node:
        begin, ends = _text(form, "begin"), form.get("end")
        ends = tuple(ends) if isinstance(ends, list) else (_text(form, "end"),)
        content = form.get("content")
        if isinstance(content, dict) and content.get("type") == "any_text" and all(ends):
            return Series((Text(begin), Until(ends)))
        end: Node = Either(tuple(Text(text) for text in ends)) if len(ends) > 1 else Text(ends[0])
        return Series((Text(begin), self.read(content, depth), end))

    def _triggered_tags(self, form: Any, depth: int) -> Node:
        """Free text in which a tag follows wherever one of the triggers, with which tags begin, is written."""
        free = Without((*_texts(form, "triggers"), *_texts(form, "excludes")))
        called = Series((free, Either(tuple(self.read(tag, depth) for tag in _list(form, "tags")))))
        least = int(bool(form.get("at_least_one")))
        if form.get("stop_after_first"):
            return called if least else Either((called, free))
        return Series((Repeat(called, least, None), free))

    def _tags_with_separator(self, form: Any, depth: int) -> Node:
        one = Either(tuple(self.read(tag, depth) for tag in _list(form, "tags")))
        more = Repeat(Series((Text(_text(form, "separator")), one)), 0, None)
        several: Node = one if form.get("stop_after_first") else Series((one, more))
        return several if form.get("at_least_one") else Either((several, NOTHING))


def _text(form: Any, name: str) -> str:
    value = form.get(name)
    if not isinstance(value, str):
        raise GrammarInvalid(f"{name} of the format {form.get('type')} is not a string")
    return value


def _texts(form: Any, name: str) -> tuple[str, ...]:
    value = form.get(name) or []
    if not isinstance(value, list) or not all(isinstance(text, str) and text for text in value):
        raise GrammarInvalid(f"{name} of the format {form.get('type')} is not a list of strings")
    return tuple(value)


def _list(form: Any, name: str) -> list[Any]:
    value = form.get(name)
    if not isinstance(value, list) or not value:
        raise GrammarInvalid(f"{name} of the format {form.get('type')} is not a list with something in it")
    return value


def _renamed(node: Node, mark: str) -> Node:
    if isinstance(node, Ref):
        return Ref(mark + node.name)
    if isinstance(node, Series):
        return Series(tuple(_renamed(part, mark) for part in node.parts))
    if isinstance(node, Either):
        return Either(tuple(_renamed(part, mark) for part in node.options))
    if isinstance(node, Repeat):
        return Repeat(_renamed(node.body, mark), node.least, node.most)
    return node
