"""JSON schemas as grammars: every text of the grammar is JSON that the schema allows.

GenAI can compile schemas itself, but allows any number of blanks between two tokens, which small models then repeat
without end; it ignores unknown keywords; and long bounds take it seconds. Here blanks are bounded, and what a grammar
cannot express (`not`, `uniqueItems`, a length of thousands) is listed in `ignored`, for a warning to the client.

Properties come in the schema's order, and only those that it names unless it allows more explicitly, as in OpenAI's
strict mode and XGrammar. One JsonValues object serves one grammar; it knows no requests and no models.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from ...errors import GrammarInvalid, GrammarTooComplex
from ...types import Json
from . import one_of
from .ebnf import Ebnf, chain, either, literal, optional, repeat
from .numbers import integer, number
from .regex import NotSupported, pattern
from .schema_bounds import MAX_ITEMS, MAX_LENGTH
from .schema_keywords import (
    ANNOTATIONS,
    UNSUPPORTED,
    Schema,
    count,
    excluded_texts,
    has_no_effect,
    items_of,
    kinds_of,
    number_bounds,
    properties_of,
    schemas,
    without,
)
from .schema_merge import Contradiction, Root, merge, resolve_reference
from .schema_validity import allows_each
from .strings import CHAR, characters, excluding, format_of, outside

MAX_DEPTH = 48
MAX_NODES = 4000
"""Most schemas visited for one grammar, merged and referenced ones each time: 40 ms of work."""

WIDE = '" "? | "\\n" [ \\t]{0,24}'
NARROW = '" "?'
"""Blanks between JSON tokens: as in indented JSON, or as on a single line."""


class JsonValues:
    """Grammars of JSON values. Subclasses write the same values in another notation."""

    words = ("true", "false", "null")
    char = CHAR
    quote = '"'
    excludes = True
    """Strings can leave out a list of texts."""

    def __init__(self, ebnf: Ebnf, root: Schema, blanks: str = NARROW) -> None:
        """root: the schema that references are resolved in. ignored: keywords that cannot be enforced."""
        self.ebnf = ebnf
        self.root = Root(root)
        self.ignored: set[str] = set()
        self._blanks = blanks
        self._refs: dict[str, str] = {}
        self._place: list[str] = []  # names of the properties around what is being written
        self._nodes = self._depth = 0

    # --- any schema

    def value(self, schema: Schema) -> str:
        """An expression for the values that a schema allows. Raises GrammarInvalid and GrammarTooComplex."""
        self._nodes += 1
        self._depth += 1
        if self._nodes > MAX_NODES or self._depth > MAX_DEPTH:
            raise GrammarTooComplex("The schema is too large or nested too deep for this server")
        try:
            return self._value(schema)
        finally:
            self._depth -= 1

    def _value(self, schema: Schema) -> str:
        if schema is True or schema == {}:
            return self.anything()
        if schema is False:
            raise Contradiction("The schema allows nothing")
        if not isinstance(schema, dict):
            raise GrammarInvalid("A schema is not an object")
        if isinstance(reference := schema.get("$ref"), str):
            return self._reference(reference, schema)
        if "const" in schema or "enum" in schema:
            return self._listed_values(schema)
        if "allOf" in schema:
            return self.value(self._combine(without(schema, "allOf"), schemas(schema, "allOf")))
        for word in ("anyOf", "oneOf"):
            if word in schema:
                return self._alternatives(without(schema, word), schemas(schema, word), exactly_one=word == "oneOf")
        return self._by_type(schema)

    def _alternatives(self, base: Json, parts: list[Schema], *, exactly_one: bool) -> str:
        """Those that contradict what is beside them are left out."""
        branches, options, error = [], [], Contradiction("The schema allows nothing")
        for part in parts:
            try:
                branches.append(self._combine(base, [part]))
            except Contradiction as found:
                error = found
        for branch in self._one_of(branches) if exactly_one else branches:
            try:
                options.append(self.value(branch))
            except Contradiction as found:
                error = found
        if not options:
            raise error
        return self.ebnf.choice(options)

    def _one_of(self, branches: list[Schema]) -> list[Schema]:
        """Alternatives none of whose values another one allows; these, with a notice, if it is not known how."""
        try:
            return one_of.exclusive(branches, self.root, texts=self.excludes)
        except one_of.Overlap:
            self.ignored.add(" of ".join(("oneOf", *[".".join(self._place)] * bool(self._place))))
            return branches

    def _combine(self, base: Json, parts: list[Schema]) -> Schema:
        """All of these as one schema; a single part is not changed, so that a reference in it may be recursive."""
        if len(parts) == 1 and not without(base, *ANNOTATIONS):
            return parts[0]
        return merge(base, parts, self.root)

    def _reference(self, reference: str, schema: Json) -> str:
        beside = without(schema, "$ref", *ANNOTATIONS)
        if beside:
            return self.value(merge(beside, [{"$ref": reference}], self.root))
        if reference not in self._refs:
            target = resolve_reference(self.root, reference)
            name = self._refs[reference] = self.ebnf.name(reference.rpartition("/")[2] or "whole")
            try:
                self.ebnf.define(name, self.value(target))
            except Contradiction:
                del self._refs[reference]
                raise
        return self._refs[reference]

    def _listed_values(self, schema: Json) -> str:
        """const or enum, without the values that are not valid by what is beside it."""
        word = "const" if "const" in schema else "enum"
        choices = [schema["const"]] if word == "const" else schema["enum"]
        if not isinstance(choices, list) or not choices:
            raise GrammarInvalid("enum is not a list with values")
        beside = without(schema, word)  # by itself each is allowed: comparing all with all took 14 s for 7000
        verdicts = allows_each(beside, choices, self.root)
        fitting = [value for value, valid in zip(choices, verdicts, strict=True) if valid is not False]
        if not fitting:
            raise Contradiction("no value of const or enum is allowed by what is beside it")
        if "const" in schema:
            return self.constant(fitting[0])
        return self.ebnf.rule("choice", self.ebnf.words([self.written(value) for value in fitting]))

    def _by_type(self, schema: Json) -> str:
        kinds = kinds_of(schema)
        if not kinds:
            return self.anything()
        excluding_texts = self.excludes and kinds == ["string"] and excluded_texts(schema) is not None
        self._ignore(schema, [word for word in UNSUPPORTED if word != "not" or not excluding_texts])
        makers: dict[str, Callable[[Json], str]] = {
            "object": self.object,
            "array": self.array,
            "string": self.string,
            "number": self.number,
            "integer": self.integer,
        }
        return self.ebnf.choice([makers[k](schema) if k in makers else self._word(k) for k in kinds])

    def _ignore(self, schema: Json, words: Sequence[str]) -> None:
        self.ignored.update(word for word in words if word in schema and not has_no_effect(word, schema[word]))

    # --- scalars

    def _word(self, kind: str) -> str:
        true, false, null = self.words
        return literal(null) if kind == "null" else either([literal(true), literal(false)])

    def integer(self, schema: Json) -> str:
        return self._number(schema, integer, 1)

    def number(self, schema: Json) -> str:
        return self._number(schema, number, 0)

    def _number(self, schema: Json, make: Callable[[float | None, float | None], str | None], step: float) -> str:
        """step: the distance of an excluded bound to the next value; 0: the bound is included."""
        low, high, above, below = number_bounds(schema, step)
        if not step and (above is not None or below is not None):
            self.ignored.add("exclusiveMinimum" if above is not None else "exclusiveMaximum")
        body = make(low, high)
        if body is None:
            raise GrammarInvalid("no number lies between minimum and maximum")
        return self.ebnf.rule("number" if not step else "integer", body)

    def string(self, schema: Json) -> str:
        inside = self._inside(schema)
        words = excluded_texts(schema) if self.excludes else None
        if words:
            inside = excluding(self.ebnf, self.char, words)
            if inside is None:
                self.ignored.add("not")
        if inside is None:
            inside = characters(self.ebnf, self.char, *self.lengths(schema))
        return self.ebnf.rule("string", f"{literal(self.quote)} {inside} {literal(self.quote)}")

    def lengths(self, schema: Json) -> tuple[int, int | None]:
        """The bounds of a string's length, as far as they are enforced."""
        return self._bounds(schema, "minLength", "maxLength", MAX_LENGTH)

    def _bounds(self, schema: Json, low: str, high: str, limit: int) -> tuple[int, int | None]:
        least, most = count(schema, low) or 0, count(schema, high)
        if most is not None and most < least:
            raise GrammarInvalid(f"{high} is less than {low}")
        if least > limit:
            self.ignored.add(low)
            least = 0
        if most is not None and most > limit:
            self.ignored.add(high)
            most = None
        return least, most

    def _inside(self, schema: Json) -> str | None:
        """The inside of a string by pattern or format; None if there is neither."""
        kind = schema.get("format")
        if "pattern" in schema:
            if not isinstance(schema["pattern"], str):
                raise GrammarInvalid("pattern is not a string")
            try:
                body = pattern(schema["pattern"], self.ebnf)
            except NotSupported:
                self.ignored.add("pattern")
                return None
            self._ignore(schema, ("minLength", "maxLength"))
            return self.ebnf.rule("pattern", body)
        known = format_of(kind) if isinstance(kind, str) else None
        if known is None:
            return None
        self._ignore(schema, ("minLength", "maxLength"))
        return self.ebnf.rule(str(kind), known)

    def constant(self, value: Any) -> str:
        """Exactly this value."""
        return literal(self.written(value))

    def written(self, value: Any) -> str:
        """The text of a value."""
        return json.dumps(value, ensure_ascii=False)

    # --- lists and objects

    @property
    def blanks(self) -> str:
        """What may stand between two tokens."""
        return self.ebnf.rule("blanks", self._blanks)

    def array(self, schema: Json) -> str:
        least, most = self._bounds(schema, "minItems", "maxItems", MAX_ITEMS)
        first, items = items_of(schema)
        if most is not None:
            first = first[:most]
        parts = [(self.value(item), place < least) for place, item in enumerate(first)]
        more = None
        if items is not False and (most is None or most > len(first)):
            more = self.ebnf.rule("item", self.value(items))
        elif least > len(first):
            raise GrammarInvalid("minItems is more than there can be")
        left = None if most is None else most - len(first)
        return self.ebnf.rule("array", self._listed(parts, more, max(0, least - len(first)), left))

    def _listed(self, first: list[tuple[str, bool]], more: str | None, least: int, most: int | None) -> str:
        blanks, comma = self.blanks, self.comma()
        body = ""
        if more is not None and most != 0:
            one = 0 if first else 1  # the first of all has no comma before it
            again = repeat(f"{comma} {more}", max(0, least - one), None if most is None else most - one)
            body = f"{more} {again}" if one else again
            if one and not least:
                return f'"[" {blanks} ({body} {blanks})? "]"'
        for place in range(len(first) - 1, -1, -1):
            item, needed = first[place]
            body = f"{comma if place else ''} {item} {body}".strip()
            if not needed:
                body = optional(body)
        return f'"[" {blanks} {body} {blanks} "]"'

    def comma(self) -> str:
        """What stands between two members."""
        return f'"," {self.blanks}'

    def object(self, schema: Json) -> str:
        properties, needed, more = self.members(schema)
        members = []
        for name, part in properties.items():
            try:
                members.append((self.member(name, part), name in needed))
            except Contradiction:
                if name in needed:
                    raise
        other = None
        if more is not False:
            other = self.ebnf.rule("other", f"{self.other_key(list(properties))} {self.colon()} {self.value(more)}")
        self._count_members(schema, len(members), needed, other)
        body = chain(self.ebnf, members, self.comma(), other)
        blanks = self.blanks
        return self.ebnf.rule("object", f'"{{" {blanks} {body} {blanks} "}}"' if body else f'"{{" {blanks} "}}"')

    def members(self, schema: Json) -> tuple[dict[str, Schema], set[str], Schema]:
        """The properties of an object schema, those that must be there, and the schema of any others (False: none)."""
        properties, needed = properties_of(schema)
        more = schema.get("additionalProperties", "properties" not in schema)
        unknown = [name for name in needed if name not in properties]
        if unknown and schema.get("additionalProperties") is False:
            raise GrammarInvalid(f"required names {unknown[0]!r}, which properties does not")
        # A required name without a schema of its own gets that of additional properties.
        return {**properties, **dict.fromkeys(unknown, True if more is False else more)}, set(needed), more

    def _count_members(self, schema: Json, named: int, needed: set[str], other: str | None) -> None:
        least, most = count(schema, "minProperties") or 0, count(schema, "maxProperties")
        if least > len(needed):
            self.ignored.add("minProperties")
        if most is not None and (other is not None or named > most):
            self.ignored.add("maxProperties")

    def colon(self) -> str:
        return '":" " "?'

    def member(self, name: str, schema: Schema) -> str:
        """One property with its value."""
        return self.ebnf.rule(
            name, f"{literal(json.dumps(name, ensure_ascii=False))} {self.colon()} {self.within(name, schema)}"
        )

    def within(self, name: str, schema: Schema) -> str:
        """The value of a property."""
        self._place.append(name)
        try:
            return self.value(schema)
        finally:
            self._place.pop()

    def other_key(self, taken: list[str]) -> str:
        """A property's name other than these (among names without escapes: a repeated name would override)."""
        return f"{literal(self.quote)} {outside(self.ebnf, taken)} {literal(self.quote)}"

    # --- anything

    def anything(self) -> str:
        """Any JSON value."""
        if "" not in self._refs:
            name = self._refs[""] = self.ebnf.name("value")
            one = [self.object({"additionalProperties": True}), self.array({}), self.string({}), self.number({})]
            self.ebnf.define(name, self.ebnf.choice([*one, self._word("boolean"), self._word("null")]))
        return self._refs[""]
