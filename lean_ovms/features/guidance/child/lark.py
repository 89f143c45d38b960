"""Translates structural tags (formats.py) to llguidance's Lark, in which a JSON schema is one expression (%json).

llguidance splits text into the longest lexemes that a grammar allows. If lexemes overlap, it then accepts other texts
than the format does. So every regular part becomes one lexeme, however it is composed; only schemas, clients' grammars
and the parts that contain them become rules.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from ....errors import GrammarInvalid, GrammarTooComplex
from ....grammar import formats
from ....types import Json
from ...structured_output.child.structural_tag import is_lark
from . import notations
from .rules import GrammarRules
from .schema_forms import Match, Rewriter

MAX_NESTING = 64
HEADER = '%llguidance {"no_forcing": true}\n'
"""The header that stops llguidance from looking, at every mask, for the end of the text that has no alternative.

With this search, a mask within the name of an ordinary tool call took 7 ms instead of 0.7, beyond llguidance's own
limit, and each token of `(("a"){200}){100}` took 0.15 s (2026-11).
"""
_EMPTY = "/(?:)/"
TERMINALS = ("ANY: ~/[^\\s\\S]/", 'SOME: (ANY & ~"")', "TEXT: /(?s:.)*/")
"""Terminals that match any byte, any non-empty text, and any UTF-8 text."""


class Converters(NamedTuple):
    """Converters to llguidance's notation, all of which raise GrammarInvalid."""

    regex: Callable[[str], str]
    """Converts a regular expression to Lark's form, between slashes."""
    ebnf: Callable[[str], str]
    """Translates a grammar in XGrammar's or llama.cpp's EBNF."""
    match: Match
    """Matches the pattern of a schema against names of properties."""


class Translated(NamedTuple):
    """A grammar in the form that llguidance compiles, and the keywords of its schemas that are not enforced."""

    text: str
    """The grammar."""
    notices: list[str]
    """The keywords that are not enforced."""


def translate(tag: Any, converters: Converters) -> Translated:
    """Translates a structural tag. Raises GrammarRefused."""
    form = tag.get("format") if isinstance(tag, dict) else None
    if not isinstance(form, dict):
        raise GrammarInvalid("The structural tag is not a JSON object with a format")
    writer = RuleWriter(converters)
    if form.get("type") == "grammar":
        return Translated(writer.grammar_of(form), [])
    try:
        whole = writer.write(form, 0)
        rules = "\n".join([f"start: {writer.in_rule(whole)}", *TERMINALS, *writer.rules])
    except RecursionError:
        raise GrammarTooComplex("The grammar is nested too deeply") from None
    text = f"{HEADER}{rules}\n"
    if writer.grammars:
        named = [{"name": name, "lark_grammar": body} for name, body in writer.grammars.items()]
        text = json.dumps({"grammars": [{"lark_grammar": text}, *named]})
    return Translated(text, sorted(writer.ignored))


class Expression(NamedTuple):
    """A part of a grammar."""

    text: str
    """The text of the part in Lark."""
    regular: bool
    """Whether the part is regular, so that it may be in a terminal."""


class RuleWriter(GrammarRules):
    """Translates the formats of a structural tag to rules."""

    def __init__(self, converters: Converters) -> None:
        super().__init__()
        self.converters = converters
        self.grammars: dict[str, str] = {}
        """The grammars of clients themselves, by their names."""

    def in_rule(self, part: Expression) -> str:
        if part.text == _EMPTY:
            return '""'
        return self.named("T", part.text) if part.regular else part.text

    def grammar_of(self, form: Json) -> str:
        """Translates a client's grammar to Lark."""
        text = _text(form, "grammar")
        if not is_lark(text):
            return HEADER + self.converters.ebnf(text)
        return text if "%llguidance" in text else HEADER + text

    def write(self, form: Any, depth: int) -> Expression:
        if not isinstance(form, dict) or depth > MAX_NESTING:
            raise GrammarInvalid("The structural tag has a format that is not an object, or is nested too deeply")
        kind = form.get("type")
        method = getattr(self, f"_{kind}", None) if isinstance(kind, str) and kind in _KINDS else None
        if method is None:
            raise GrammarInvalid(f"The format {str(kind)[:40]!r} of structural tags is not supported")
        written: Expression = method(form, depth + 1)
        return written

    # --- formats

    def _json_schema(self, form: Json, depth: int) -> Expression:
        schema, style = form.get("json_schema"), form.get("style", "json")
        if not isinstance(schema, dict | bool):
            raise GrammarInvalid("json_schema is not an object")
        if style in ("json", formats.ONE_LINE):
            rewriter = Rewriter(self.converters.match)
            name = self.json(rewriter.schema(schema), one_line=style == formats.ONE_LINE)
            self.ignored |= rewriter.dropped
            return Expression(name, False)
        return Expression(notations.write(style, schema, self), False)

    def _grammar(self, form: Json, depth: int) -> Expression:
        name = f"g{len(self.grammars)}"
        self.grammars[name] = self.grammar_of(form)
        return Expression(self.named("own_", f"@{name}"), False)

    def _const_string(self, form: Json, depth: int) -> Expression:
        return Expression(literal(_text(form, "value")), True)

    def _regex(self, form: Json, depth: int) -> Expression:
        return Expression(self.converters.regex(_text(form, "pattern")), True)

    def _any_text(self, form: Json, depth: int) -> Expression:
        excluded, inside = _texts(form, "excludes"), _inside(form)
        return Expression(f"({inside} & ~(ANY {_any_of(excluded)} ANY))" if excluded else inside, True)

    def _sequence(self, form: Json, depth: int) -> Expression:
        return self._series([self.write(part, depth) for part in _list(form, "elements")])

    def _or(self, form: Json, depth: int) -> Expression:
        return self._either([self.write(part, depth) for part in _list(form, "elements")])

    def _counted(self, form: Json, depth: int) -> Expression:
        return self._repeated(self.write(form.get("content"), depth), _COUNTS[form["type"]])

    _optional = _plus = _star = _counted

    def _repeat(self, form: Json, depth: int) -> Expression:
        least, most = form.get("min"), form.get("max")
        if not isinstance(least, int) or not isinstance(most, int) or least < 0:
            raise GrammarInvalid("min and max of the format repeat are not numbers")
        return self._repeated(self.write(form.get("content"), depth), f"{{{least},{most if most >= 0 else ''}}}")

    def _tag(self, form: Json, depth: int) -> Expression:
        begin, ends = _text(form, "begin"), form.get("end")
        return self._series([Expression(literal(begin), True), self._ended(form, ends, depth)])

    def _ended(self, form: Json, ends: Any, depth: int) -> Expression:
        texts = tuple(ends) if isinstance(ends, list) else (ends,)
        if not texts or not all(isinstance(text, str) for text in texts):
            raise GrammarInvalid("end of the format tag is not a string")
        content = form.get("content")
        if isinstance(content, dict) and content.get("type") == "any_text" and all(texts):
            return Expression(until(texts, _texts(content, "excludes"), inside=_inside(content)), True)
        return self._series([self.write(content, depth), Expression(_any_of(texts), True)])

    def _triggered_tags(self, form: Json, depth: int) -> Expression:
        """Translates free text in which each trigger must be the beginning of one of the tags."""
        triggers, excluded = _texts(form, "triggers"), _texts(form, "excludes")
        if not triggers:
            raise GrammarInvalid("triggers of the format triggered_tags is not a non-empty list")
        called = []
        for trigger in triggers:
            rests = [self._after(trigger, tag, depth) for tag in _list(form, "tags") if _begins(tag, trigger, triggers)]
            if rests:
                before = Expression(until((trigger,), excluded, triggers), True)
                called.append(self._series([before, self._either(rests)]))
        if not called:
            raise GrammarInvalid("no tag of the format triggered_tags begins with a trigger")
        one = self._either(called)
        free = self._any_text({"excludes": [*triggers, *excluded]}, depth)
        least = bool(form.get("at_least_one"))
        if form.get("stop_after_first"):
            return one if least else self._either([one, free])
        return self._series([self._repeated(one, "+" if least else "*"), free])

    def _after(self, trigger: str, tag: Any, depth: int) -> Expression:
        begin = Expression(literal(_text(tag, "begin").removeprefix(trigger)), True)
        return self._series([begin, self._ended(tag, tag.get("end"), depth)])

    def _tags_with_separator(self, form: Json, depth: int) -> Expression:
        one = self._either([self.write(tag, depth) for tag in _list(form, "tags")])
        if form.get("stop_after_first"):
            several = one
        else:
            most = form.get("most")
            count = f"{{0,{most - 1}}}" if isinstance(most, int) and most > 0 else "*"
            more = self._series([Expression(literal(_text(form, "separator")), True), one])
            several = self._series([one, self._repeated(more, count)])
        return several if form.get("at_least_one") else self._repeated(several, "?")

    # --- expressions

    def _series(self, parts: Sequence[Expression]) -> Expression:
        """Joins parts that follow each other; adjacent regular parts become one lexeme."""
        parts = [part for part in parts if part.text != _EMPTY] or [Expression(_EMPTY, True)]
        if all(part.regular for part in parts):
            return Expression(" ".join(part.text for part in parts), True)
        done: list[str] = []
        regular: list[str] = []
        for part in [*parts, None]:
            if part is not None and part.regular:
                regular.append(part.text)
                continue
            if regular:
                done.append(self.named("T", " ".join(regular)))
                regular = []
            if part is not None:
                done.append(part.text)
        return Expression(self.named("r", " ".join(done)), False)

    def _either(self, parts: Sequence[Expression]) -> Expression:
        if len(parts) == 1:
            return parts[0]
        if all(part.regular for part in parts):
            return Expression(f"({' | '.join(dict.fromkeys(part.text for part in parts))})", True)
        return Expression(self.named("r", " | ".join(dict.fromkeys(map(self.in_rule, parts)))), False)

    def _repeated(self, part: Expression, count: str) -> Expression:
        if part.text == _EMPTY:
            return part
        if part.regular:
            return Expression(f"({part.text}){count}", True)
        return Expression(self.named("r", f"({part.text}){count}"), False)


_COUNTS = {"optional": "?", "plus": "+", "star": "*"}
_KINDS = (
    *("json_schema", "grammar", "const_string", "regex", "any_text", "sequence", "or", *_COUNTS),
    *("repeat", "tag", "triggered_tags", "tags_with_separator"),
)


def until(ends: Sequence[str], excluded: Sequence[str] = (), others: Sequence[str] = (), *, inside: str = "ANY") -> str:
    """Returns an expression of any text up to the first of some ends.

    Args:
        ends: The texts of which one has to follow.
        excluded: Texts that must not be in the text.
        others: Ends of other kinds, which must not come before.
        inside: The terminal of the text's characters.
    """
    every = _any_of((*ends, *(text for text in others if text not in ends)))
    without = f" & ~(ANY {_any_of(excluded)} ANY)" if excluded else ""
    return f"(({inside} {_any_of(ends)}) & ~(ANY {every} SOME){without})"


def _inside(form: Json) -> str:
    """Returns the terminal for the characters of a free-text format: TEXT if it must not contain special tokens."""
    return "TEXT" if form.get("special") is False else "ANY"


def literal(text: str) -> str:
    """Returns an expression that matches exactly this text."""
    return json.dumps(text) if text else _EMPTY


def _any_of(texts: Sequence[str]) -> str:
    return literal(texts[0]) if len(texts) == 1 else f"({' | '.join(map(literal, texts))})"


def _begins(tag: Any, trigger: str, triggers: Sequence[str]) -> bool:
    """Returns whether a trigger is the first one with which a tag begins. Raises GrammarInvalid if none is."""
    begin = _text(tag, "begin")
    found = next((one for one in triggers if begin.startswith(one)), None)
    if found is None:
        raise GrammarInvalid("a tag of the format triggered_tags begins with none of its triggers")
    return found == trigger


def _text(form: Any, name: str) -> str:
    value = form.get(name) if isinstance(form, dict) else None
    if not isinstance(value, str):
        raise GrammarInvalid(f"{name} of the format {_kind(form)} is not a string")
    return value


def _texts(form: Json, name: str) -> tuple[str, ...]:
    value = form.get(name) or []
    if not isinstance(value, list) or not all(isinstance(text, str) and text for text in value):
        raise GrammarInvalid(f"{name} of the format {_kind(form)} is not a list of strings")
    return tuple(value)


def _list(form: Json, name: str) -> list[Any]:
    value = form.get(name)
    if not isinstance(value, list) or not value:
        raise GrammarInvalid(f"{name} of the format {_kind(form)} is not a non-empty list")
    return value


def _kind(form: Any) -> str:
    return str(form.get("type"))[:40] if isinstance(form, dict) else "tag"
