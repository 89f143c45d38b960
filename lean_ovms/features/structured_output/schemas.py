"""Prepares JSON schemas for a grammar library by making their objects closed.

An object that declares properties has no others unless `additionalProperties` allows them, as in OVMS and in OpenAI's
strict mode. By JSON Schema's default it may have others, so `additionalProperties: false` is added. Objects that are
combined (allOf, $ref or anyOf next to properties) are closed as a whole: each part gets the names of the others.
What no grammar can enforce is left out and reported: patterns with look-around or back references, and upper bounds of
more than MAX_COUNT, which answers do not reach.
"""

from __future__ import annotations

import re
from typing import Any

from ...errors import GrammarInvalid, GrammarTooComplex
from ...grammar.schema import NOTES, Schema, resolved
from ...types import Json

ANY_OBJECT: Json = {"type": "object", "additionalProperties": True}
"""The schema of an object with any members."""
TYPES = ("string", "number", "integer", "boolean", "null", "array", "object")
MAX_NODES = 20_000
"""The most schemas within a schema, where the target of a reference counts each time that it is written out."""
MAX_DEPTH = 64
MAX_COUNT = 10_000
"""The most that minLength and similar keywords may be: masks of longer repetitions are slow."""
_JOINED = ("allOf", "anyOf", "oneOf")
_COUNTS = ("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties")
_UPPER = ("maxLength", "maxItems", "maxProperties")
_DEFINITIONS = ("$defs", "definitions")
_NOT_REGULAR = re.compile(r"\(\?(?:[=!]|<[=!])|\\[1-9]|\\k<")


def closed(schema: Any) -> tuple[Schema, list[str]]:
    """Closes the objects of a schema. Returns it, and the keywords that cannot be enforced.

    Raises GrammarInvalid for an invalid schema, and GrammarTooComplex if it has too many parts.
    """
    writer = _Writer(schema)
    done = writer.value(schema)
    return done, sorted(writer.dropped)


class _Writer:
    """Rewrites one schema. `dropped` has the keywords that are left out."""

    def __init__(self, root: Schema) -> None:
        self.root = root
        self.dropped: set[str] = set()
        self._nodes = self._depth = 0
        self._sound: set[str] = set()  # references that lead to something other than themselves

    def value(self, schema: Any, others: frozenset[str] = frozenset(), opened: tuple[str, ...] = ()) -> Schema:
        """Returns a closed schema, whose objects have no properties except those that it names.

        Args:
            schema: The schema, not checked yet.
            others: The properties that other schemas name for the same object.
            opened: The references around this schema that were replaced by their targets.

        Raises:
            GrammarInvalid: It is not a schema.
            GrammarTooComplex: The whole schema has too many parts, or is nested too deeply.
        """
        if isinstance(schema, bool):
            return schema
        if not isinstance(schema, dict):
            raise GrammarInvalid("a part of the schema is not a schema")
        self._count()
        _check(schema)
        self._depth += 1
        done = self._reference(schema, others, opened) if "$ref" in schema else self._written(schema, others, opened)
        self._depth -= 1
        return done

    def _written(self, schema: Json, others: frozenset[str], opened: tuple[str, ...]) -> Schema:
        done = self._enforceable(schema)
        joined = "allOf" in schema or "properties" in schema or bool(others)
        names = others | self._names(schema) if joined else others
        for key in _JOINED:
            if key in schema:
                done[key] = [self.value(part, names, opened) for part in schema[key]]
        self._write_inner(done, opened)
        if "properties" in schema or "patternProperties" in schema:
            self._close(done, names)
        return self._with_definitions(schema, done)

    def _write_inner(self, done: Json, opened: tuple[str, ...]) -> None:
        """Closes the schemas of the values inside an object or an array."""
        for key in ("items", "additionalProperties", "prefixItems"):
            if key in done:
                part = done[key]
                several = isinstance(part, list)
                done[key] = [self._apart(one, opened) for one in part] if several else self._apart(part, opened)
        for key in ("properties", "patternProperties"):
            if key in done:
                done[key] = {name: self._apart(part, opened) for name, part in done[key].items()}

    def _apart(self, schema: Any, opened: tuple[str, ...]) -> Schema:
        """Returns the closed form of the schema of a nested value."""
        return self.value(schema, frozenset(), opened)

    def _close(self, done: Json, names: frozenset[str]) -> None:
        unevaluated = done.pop("unevaluatedProperties", False) if "additionalProperties" not in done else False
        done.setdefault("additionalProperties", unevaluated)
        if done["additionalProperties"] is False:
            listed = done.get("properties", {})
            done["properties"] = {**listed, **{name: True for name in sorted(names) if name not in listed}}

    def _reference(self, schema: Json, others: frozenset[str], opened: tuple[str, ...]) -> Schema:
        """Returns a reference that stands alone as it is, or else its target, closed together with its siblings."""
        ref = schema["$ref"]
        self._follow(schema, ())
        siblings = {key: value for key, value in schema.items() if key not in ("$ref", *_DEFINITIONS, *NOTES)}
        target = resolved(self.root, ref)
        if target is None or ref in opened or not (others or siblings):
            return self._with_definitions(schema, dict(schema))
        whole = {**siblings, "allOf": [*siblings.get("allOf", ()), target]} if siblings else target
        return self._with_definitions(schema, self.value(whole, others, (*opened, ref)))

    def _follow(self, schema: Schema, path: tuple[str, ...]) -> None:
        """Raises GrammarInvalid for a reference that leads only back to itself."""
        if not isinstance(schema, dict):
            return
        _check(schema)
        ref = schema.get("$ref")
        if isinstance(ref, str) and ref not in self._sound:
            if ref in path:
                raise GrammarInvalid(f"$ref {ref[:80]} is circular")
            self._follow(resolved(self.root, ref) or False, (*path, ref))
            self._sound.add(ref)
        for part in schema.get("allOf", ()):
            self._follow(part, path)

    def _with_definitions(self, schema: Json, done: Schema) -> Schema:
        if schema is not self.root or not isinstance(done, dict):
            return done
        for key in _DEFINITIONS:
            if isinstance(found := schema.get(key), dict):
                done[key] = {name: self._definition(part) for name, part in found.items()}
        return done

    def _definition(self, schema: Any) -> Any:
        """Rewrites a definition. An invalid one is left as it is, since it matters only if something refers to it."""
        try:
            return self.value(schema)
        except GrammarInvalid:
            return schema

    def _enforceable(self, schema: Json) -> Json:
        """Returns a copy of a schema without the patterns and upper bounds that no grammar can enforce."""
        done = dict(schema)
        for key in _UPPER:
            if schema.get(key, 0) > MAX_COUNT:
                self.dropped.add(f"{key} of more than {MAX_COUNT}")
                del done[key]
        if isinstance(pattern := schema.get("pattern"), str) and _NOT_REGULAR.search(pattern):
            self.dropped.add("pattern")
            del done["pattern"]
        named = schema.get("patternProperties", {})
        if any(map(_NOT_REGULAR.search, named)):
            self.dropped.add("patternProperties")
            done["patternProperties"] = {name: one for name, one in named.items() if not _NOT_REGULAR.search(name)}
        return done

    def _names(self, schema: Schema) -> frozenset[str]:
        """Returns the properties of one object that a schema or a part of it declares or requires."""
        found: set[str] = set()
        seen: set[str] = set()
        todo = [schema]
        while todo:
            one = todo.pop()
            self._count()
            if not isinstance(one, dict):
                continue
            _check(one)
            found.update(one.get("properties", ()), one.get("required", ()))
            for key in _JOINED:
                todo += one.get(key, ())
            ref = one.get("$ref")
            if isinstance(ref, str) and ref not in seen:
                seen.add(ref)
                if (target := resolved(self.root, ref)) is not None:
                    todo.append(target)
        return frozenset(found)

    def _count(self) -> None:
        self._nodes += 1
        if self._nodes > MAX_NODES:
            raise GrammarTooComplex(f"the schema has more than {MAX_NODES} parts")
        if self._depth > MAX_DEPTH:
            raise GrammarTooComplex(f"the schema is nested deeper than {MAX_DEPTH} levels")


def _check(schema: Json) -> None:
    """Raises GrammarInvalid if a keyword that this module reads has a value of a wrong type."""
    kind = schema.get("type", [])
    wrong = [one for one in (kind if isinstance(kind, list) else [kind]) if one not in TYPES]
    if wrong:
        raise GrammarInvalid(f"{str(wrong[0])[:40]!r} is not a type")
    for key in ("properties", "patternProperties"):
        if not isinstance(schema.get(key, {}), dict):
            raise GrammarInvalid(f"{key} is not an object")
    for key in (*_JOINED, "prefixItems", "required", "enum"):
        if not isinstance(schema.get(key, []), list):
            raise GrammarInvalid(f"{key} is not a list")
    if not all(isinstance(name, str) for name in schema.get("required", ())):
        raise GrammarInvalid("required is not a list of names")
    if not isinstance(schema.get("$ref", ""), str):
        raise GrammarInvalid("$ref is not a string")
    for key in _COUNTS:
        if isinstance(count := schema.get(key, 0), bool) or not isinstance(count, int) or count < 0:
            raise GrammarInvalid(f"{key} is not a whole number of 0 or more")
