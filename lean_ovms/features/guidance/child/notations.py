"""Rules in llguidance's Lark for the notations in which some model families write arguments (grammar/notations.py).

Numbers, and strings in Python's notation, are written as in JSON, so the library gets their schemas as they are. Only
words, quotes, keys and brackets differ.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from ....errors import GrammarInvalid
from ....grammar.notations import STYLES, Gemma, ValueNotation
from ....grammar.schema import NOTES, Schema, flat, resolved
from .rules import GrammarRules
from .schema_forms import limit_format

MAX_CHOICES = 1000
_TYPES = ("object", "array", "string", "number", "boolean", "null")
_NUMBERS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")
_IGNORED = {
    *("not", "if", "then", "else", "uniqueItems", "contains", "patternProperties", "propertyNames"),
    *("minProperties", "maxProperties", "dependentRequired", "dependentSchemas", "prefixItems"),
}


def write(style: str, schema: Schema, writer: GrammarRules) -> str:
    """Returns the name of a rule for values of a schema in a notation. Raises GrammarInvalid."""
    if style not in STYLES:
        raise GrammarInvalid(f"The style {str(style)[:40]!r} of a JSON schema is not supported")
    notation = STYLES[style]
    values = (_GemmaValues if issubclass(notation, Gemma) else _Values)(notation, schema, writer)
    return values.arguments(schema) if style == "python_arguments" else values.value(schema)


class _Values:
    """Writes the rules of values in Python's notation; other notations are derived from it."""

    words = ("True", "False", "None")
    comma = "/, ?/"
    colon = "/: ?/"

    def __init__(self, notation: type[ValueNotation], root: Schema, writer: GrammarRules) -> None:
        self.notation = notation
        self.root = root
        self.writer = writer
        self._references: dict[str, str] = {}
        self._any = ""

    def value(self, schema: Schema) -> str:
        """Returns the name of a rule for values of a schema."""
        if not isinstance(schema, dict):
            return self.any_value()
        ref = schema.get("$ref")
        if isinstance(ref, str) and not set(schema) - NOTES - {"$ref", "$defs", "definitions"}:
            return self._reference(ref)
        whole = flat(self.root, schema)
        if not isinstance(whole, dict):
            return self.any_value()
        self.writer.ignored |= _IGNORED & set(whole)
        listed = [whole["const"]] if "const" in whole else whole.get("enum")
        if listed is not None:
            if not listed or len(listed) > MAX_CHOICES:
                raise GrammarInvalid("a list of values is empty or too long")
            return self._either([json.dumps(self.notation.written(value)) for value in listed])
        for word in ("anyOf", "oneOf"):
            if word in whole:
                if word == "oneOf":
                    self.writer.ignored.add("oneOf")
                siblings = {key: part for key, part in whole.items() if key not in (word, "$defs", "definitions")}
                parts = [{"allOf": [siblings, part]} if siblings else part for part in whole[word]]
                return self._either([self.value(part) for part in parts])
        kinds = whole.get("type") or _kinds(whole)
        return self._either([self._of(kind, whole) for kind in (kinds if isinstance(kinds, list) else [kinds])])

    def arguments(self, schema: Schema) -> str:
        """Returns the name of a rule for the members of an object, written as keyword arguments."""
        whole = flat(self.root, schema)
        if not isinstance(whole, dict):
            raise GrammarInvalid("the parameters of a tool are not an object")
        self.writer.ignored |= (_IGNORED | {"anyOf", "oneOf"}) & set(whole)
        members = [
            (self.writer.named("r", f"{json.dumps(name + '=')} {self.value(part)}"), needed)
            for name, part, needed in _properties(whole)
        ]
        more, other = whole.get("additionalProperties", True), ""
        if more is not False and not members:
            other = self.writer.named("r", f"/[a-z_][a-z0-9_]{{0,63}}=/ {self.value(more)}")
        return self._members(members, '", "', other)

    def any_value(self) -> str:
        """Returns the name of a rule for any value in the notation."""
        if not self._any:
            self._any = f"any_{len(self.writer.rules)}"
            self.writer.rules.append(f"{self._any}: {' | '.join([self._of(kind, {}) for kind in _TYPES])}")
        return self._any

    def _reference(self, ref: str) -> str:
        if ref not in self._references:
            target = resolved(self.root, ref)
            if target is None:
                raise GrammarInvalid(f"$ref {ref[:80]} points outside of the schema")
            name = self._references[ref] = f"ref_{len(self.writer.rules)}_{len(self._references)}"
            self.writer.rules.append(f"{name}: {self.value(target)}")
        return self._references[ref]

    def _of(self, kind: str, schema: Any) -> str:
        if kind == "object":
            return self._object(schema)
        if kind == "array":
            return self._array(schema)
        if kind == "string":
            return self.string(schema)
        if kind in ("number", "integer"):
            return self.writer.json({"type": kind, **{key: schema[key] for key in _NUMBERS if key in schema}})
        named = self.words[:2] if kind == "boolean" else self.words[2:]
        return self._either([json.dumps(word) for word in named])

    def _array(self, schema: Any) -> str:
        one = self.value(schema.get("items", True)) if not isinstance(schema.get("items"), list) else self.any_value()
        least, most = schema.get("minItems", 0), schema.get("maxItems")
        if most == 0:
            return self.writer.named("r", '"[" "]"')
        count = f"{{{max(0, int(least) - 1)},{'' if most is None else int(most) - 1}}}"
        several = f"{one} ({self.comma} {one}){count}"
        return self.writer.named("r", f'"[" {several} "]"' if least else f'"[" ({several})? "]"')

    def _object(self, schema: Any) -> str:
        members = [
            (self.writer.named("r", f"{self.key(name)} {self.colon} {self.value(part)}"), needed)
            for name, part, needed in _properties(schema)
        ]
        more, other = schema.get("additionalProperties", True), ""
        if more is not False:
            other = self.writer.named("r", f"{self.any_key()} {self.colon} {self.value(more)}")
        return self.writer.named("r", f'"{{" {self._members(members, self.comma, other)} "}}"')

    def _members(self, members: Sequence[tuple[str, bool]], comma: str, other: str) -> str:
        """Returns an expression of members in order, of which optional ones may be missing, and then of any others.

        It needs two rules for each member, so the grammar grows with the number of members, not with that of
        combinations.
        """
        after = f"({comma} {other})*" if other else '""'
        start = f"({other} {after})?" if other else '""'
        for member, needed in reversed(members):
            here = f"{member} {after}"
            start = self.writer.named("r", here if needed else f"{here} | {start}")
            after = self.writer.named("r", f"{comma} {here}" if needed else f"({comma} {member})? {after}")
        return self.writer.named("r", start)

    def _either(self, options: Sequence[str]) -> str:
        return self.writer.named("r", " | ".join(dict.fromkeys(options)))

    # --- what notations differ in

    def string(self, schema: Any) -> str:
        """Returns the name of a rule for a string, with only the escapes that Python and JSON share."""
        kept = {key: schema[key] for key in ("minLength", "maxLength", "pattern", "format") if key in schema}
        limit_format(kept)
        return self.writer.json({"type": "string", **kept}, json_allowed_escapes='nrt"\\')

    def key(self, name: str) -> str:
        return json.dumps(self.notation.key(name))

    def any_key(self) -> str:
        return self.string({})


class _GemmaValues(_Values):
    """The rules of values in Gemma's notation."""

    words = ("true", "false", "null")
    comma = '","'
    colon = '":"'

    def string(self, schema: Any) -> str:
        self.writer.ignored.update({"pattern", "format"} & set(schema))
        least, most = schema.get("minLength", 0), schema.get("maxLength")
        quote = json.dumps(self.notation.quote)
        if not least and most is None:
            return self.writer.named("T", f"{quote} ((TEXT {quote}) & ~(ANY {quote} SOME))")
        counted = f"/[^<]{{{int(least)},{'' if most is None else int(most)}}}/"
        return self.writer.named("T", f"{quote} {counted} {quote}")

    def any_key(self) -> str:
        return "/[a-zA-Z_][a-zA-Z0-9_]{0,63}/"


def _properties(schema: Any) -> Iterator[tuple[str, Schema, bool]]:
    """Yields the name and the schema of each property that is declared or required, and whether it is required.

    Raises GrammarInvalid if a required one is not allowed.
    """
    declared, required = schema.get("properties", {}), schema.get("required", ())
    for name in dict.fromkeys([*declared, *required]):
        part: Schema = declared.get(name, schema.get("additionalProperties", True))
        if part is False and name in required:
            raise GrammarInvalid(f"the required property {name[:80]!r} is not allowed")
        if part is not False:
            yield name, part, name in required


def _kinds(schema: Any) -> list[str]:
    """Returns the types that a schema without one allows, by its keywords."""
    if "properties" in schema or "required" in schema or "additionalProperties" in schema:
        return ["object"]
    return ["array"] if "items" in schema else list(_TYPES)
