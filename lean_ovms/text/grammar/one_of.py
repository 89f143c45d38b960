"""`oneOf`: alternatives from which the values are taken that another of them allows as well.

A grammar writes one alternative and the value must be invalid by every other. Two sides of an alternative differ
therefore: what its grammar writes (properties that the schema names and no others, bounds as far as they are enforced)
and what is valid by it (JSON Schema). Most alternatives exclude each other in this sense as they are: by a constant, a
type, a required property. From others the shared values are cut off: a list of values gets shorter, a property
becomes required or forbidden. What is cut may be more than is shared; what is left is never valid by two.
"""

from __future__ import annotations

from typing import Any

from ...errors import GrammarInvalid, GrammarTooComplex
from ...types import Json
from .schema_bounds import MAX_ITEMS, apart, contains_bounds
from .schema_forms import ObjectSchema, exactly, is_list, item_at, listed_values
from .schema_keywords import (
    ANNOTATIONS,
    Schema,
    count,
    excluded_texts,
    has_no_effect,
    has_type,
    items_of,
    kinds_of,
    schemas,
    types_of,
    without,
)
from .schema_merge import Contradiction, Root, merge
from .schema_validity import allows_each

MAX_COMPARED, MAX_PARTS, MAX_DEPTH = 5000, 16, 24
"""Most pairs of schemas compared for one `oneOf` (30 ms), and most parts of an alternative."""
_ANY: list[Schema] = [
    {"type": "object", "additionalProperties": True},
    *({"type": kind} for kind in ("array", "string", "number", "boolean", "null")),
]


class Overlap(Exception):
    """It is not known how to separate two alternatives."""


def exclusive(branches: list[Schema], root: Root, *, texts: bool) -> list[Schema]:
    """Alternatives for a grammar in the place of these, no value of which two of these allow. Raises Overlap.

    texts: a grammar of strings can leave out a list of texts (`not` with `enum`).
    """
    try:
        found = _Cutter(root, texts).all(branches)
    except (GrammarInvalid, GrammarTooComplex) as error:
        raise Overlap from error
    if not found:
        raise Overlap
    return found


class _Cutter:
    def __init__(self, root: Root, texts: bool) -> None:
        self.root = root
        self.texts = texts
        self._left = MAX_COMPARED

    def all(self, branches: list[Schema]) -> list[Schema]:
        if self._discriminated([self.resolved(branch) for branch in branches]):
            return branches
        found: list[Schema] = []
        for place, branch in enumerate(branches):
            parts = [branch]
            for other in [*branches[:place], *branches[place + 1 :]]:
                parts = [kept for part in parts for kept in self.cut(part, other, 0)]
                if len(parts) > MAX_PARTS:
                    raise Overlap
            found += parts
        return found

    def _discriminated(self, wholes: list[Any]) -> bool:
        """Whether a property that all require has other texts in each: the usual case, without comparing all pairs."""
        if not all(isinstance(whole, dict) and kinds_of(whole) == ["object"] for whole in wholes):
            return False
        objects = [ObjectSchema(whole) for whole in wholes]
        for name in objects[0].needed:
            values = [listed_values(one.properties.get(name, True), self.root) for one in objects if name in one.needed]
            texts = [text for found in values for text in (found or ())]
            listed = len(values) == len(objects) and None not in values
            if listed and all(isinstance(text, str) for text in texts) and len(set(texts)) == len(texts):
                return True
        return False

    # --- values of one that are not valid by another

    def cut(self, one: Schema, other: Schema, depth: int) -> list[Schema]:
        """Schemas for values of `one` that `other` does not allow; itself if it allows none. Raises Overlap."""
        if self.separate(one, other, depth):
            return [one]
        whole, by = self.resolved(one), self.resolved(other)
        values = listed_values(whole, self.root)
        if values is not None:
            verdicts = allows_each(by, values, self.root)
            if None in verdicts:
                raise Overlap
            kept = [value for value, valid in zip(values, verdicts, strict=True) if not valid]
            return [{"enum": kept}] if kept else []
        parts = self.parts(whole, cutting=True)
        if parts != [whole]:
            return [kept for part in parts for kept in self.cut(part, other, depth + 1)]
        if self.contains(by, whole, depth):
            return []
        return self._cut_one(whole, by, depth)

    def _cut_one(self, one: Json, other: Json, depth: int) -> list[Schema]:
        """one: of one type."""
        if "anyOf" in other:
            left: list[Schema] = [one]
            for part in self.branches(other, "anyOf"):
                left = [kept for held in left for kept in self.cut(held, part, depth + 1)]
            return left
        words, kind = listed_values(other, self.root), types_of(one)[0]
        if kind == "string" and words is not None and self.texts and not without(one, "type", "not", *ANNOTATIONS):
            taken = excluded_texts(one) if "not" in one else []
            if taken is not None:
                return [{**one, "not": {"enum": [*taken, *(word for word in words if isinstance(word, str))]}}]
        if kind == "object" and words is None and "oneOf" not in other:
            return self._cut_object(one, other, depth)
        raise Overlap

    def _cut_object(self, one: Json, other: Json, depth: int) -> list[Schema]:
        """Objects that lack what the other requires, have what it forbids, or a property with another value."""
        mine, theirs = ObjectSchema(one), ObjectSchema(other)
        found: list[Schema] = []
        for name in [n for n in theirs.needed if n not in mine.needed and (n in mine.properties or self.texts)]:
            found.append(mine.changed({name: False}, mine.needed))
        for name in [n for n, held in mine.properties.items() if held is not False]:
            try:
                values = self.cut(mine.properties[name], theirs.value(name), depth + 1)
            except Overlap:
                continue
            if values:
                value = values[0] if len(values) == 1 else {"anyOf": values}
                needed = [*mine.needed, *([name] if name not in mine.needed else [])]
                found.append(mine.changed({name: value}, needed))
        if not found:
            raise Overlap
        return found

    # --- no value of one is valid by another

    def separate(self, one: Schema, other: Schema, depth: int) -> bool:
        """Whether it is certain that nothing that a grammar of `one` writes is valid by `other`."""
        self._count(depth)
        whole, by = self.resolved(one), self.resolved(other)
        if whole is False or by is False:
            return True
        if by is True:
            return False
        values = listed_values(whole, self.root)
        if values is not None:
            return not any(verdict is not False for verdict in allows_each(by, values, self.root))
        parts = self.parts(whole)
        if parts != [whole]:
            return all(self.separate(part, by, depth + 1) for part in parts)
        words = listed_values(by, self.root)
        if words is not None:
            return all(self._separate_value(whole, word, depth) for word in words)
        for word in ("anyOf", "oneOf"):
            if word in by:
                return all(self.separate(whole, part, depth + 1) for part in self.branches(by, word))
        return self._separate_one(whole, by, depth)

    def _separate_value(self, one: Json, value: Any, depth: int) -> bool:
        if not has_type(value, types_of(one)[0]) or value in (excluded_texts(one) or ()):
            return True
        return self._separate_one(one, exactly(value), depth)

    def _separate_one(self, one: Json, other: Json, depth: int) -> bool:
        """Both without alternatives, one of one type."""
        kind, theirs = types_of(one)[0], types_of(other)
        if theirs and not any(kind == their or {kind, their} == {"integer", "number"} for their in theirs):
            return True
        if apart(kind, one, other):
            return True
        if kind == "object":
            return self._separate_objects(ObjectSchema(one), ObjectSchema(other), depth)
        return kind == "array" and self._separate_arrays(one, other, depth)

    def _separate_objects(self, mine: ObjectSchema, theirs: ObjectSchema, depth: int) -> bool:
        if any(not mine.writes(name) for name in theirs.needed):
            return True
        shared = [name for name in dict.fromkeys((*mine.needed, *theirs.needed)) if name in mine.properties]
        shared.sort(key=lambda name: not is_list(mine.properties[name]))
        return any(self.separate(mine.properties[name], theirs.value(name), depth + 1) for name in shared)

    def _separate_arrays(self, one: Json, other: Json, depth: int) -> bool:
        least = count(one, "minItems") or 0
        mine, theirs = items_of(one), items_of(other)
        places = range(min(least, 1 + max(len(mine[0]), len(theirs[0]))) if least <= MAX_ITEMS else 0)
        return any(self.separate(item_at(mine, place), item_at(theirs, place), depth + 1) for place in places)

    # --- every value of one is valid by another

    def contains(self, other: Schema, one: Schema, depth: int) -> bool:
        """Whether it is certain that everything that a grammar of `one` writes is valid by `other`."""
        self._count(depth)
        by, whole = self.resolved(other), self.resolved(one)
        if by is True or whole is False:
            return True
        if by is False:
            return False
        if whole is True or not isinstance(whole, dict):
            return all(self.contains(by, part, depth + 1) for part in _ANY)
        values = listed_values(whole, self.root)
        if values is not None:
            return all(allows_each(by, values, self.root))
        parts = self.parts(whole)
        if parts != [whole]:
            return all(self.contains(by, part, depth + 1) for part in parts)
        if "anyOf" in by:
            return any(self.contains(part, whole, depth + 1) for part in self.branches(by, "anyOf"))
        return self._contains_one(by, whole, depth)

    def _contains_one(self, other: Json, one: Json, depth: int) -> bool:
        kind, theirs = types_of(one)[0], types_of(other)
        if theirs and not any(kind == their or (kind, their) == ("integer", "number") for their in theirs):
            return False
        if not theirs and (implied := kinds_of(other)) and kind not in implied:
            return False  # valid by the letter; what is meant is another type
        rest = without(other, "type", "nullable", *ANNOTATIONS)
        rest = {word: held for word, held in rest.items() if not has_no_effect(word, held)}
        if not contains_bounds(kind, rest, one):
            return False
        if kind == "object":
            return self._contains_object(ObjectSchema(other), ObjectSchema(one), depth)
        return kind != "array" or self._contains_array(other, one, depth)

    def _contains_object(self, theirs: ObjectSchema, mine: ObjectSchema, depth: int) -> bool:
        if not set(theirs.needed) <= set(mine.needed):
            return False
        others = [n for n in theirs.properties if n not in mine.properties] if mine.more is not False else []
        pairs = [(theirs.value(name), held) for name, held in mine.properties.items() if held is not False]
        pairs += [(theirs.properties[name], mine.more) for name in others]
        pairs += [(theirs.more, mine.more)] if mine.more is not False else []
        return all(self.contains(by, value, depth + 1) for by, value in pairs)

    def _contains_array(self, other: Json, one: Json, depth: int) -> bool:
        mine, theirs = items_of(one), items_of(other)
        if len(theirs[0]) > len(mine[0]):
            return False
        pairs = [*zip(theirs[0] + [theirs[1]] * (len(mine[0]) - len(theirs[0])), mine[0], strict=True)]
        pairs += [(theirs[1], mine[1])] if mine[1] is not False else []
        return all(self.contains(by, value, depth + 1) for by, value in pairs)

    def _count(self, depth: int) -> None:
        """One more pair of schemas is compared. Raises Overlap."""
        self._left -= 1
        if self._left < 0 or depth > MAX_DEPTH:
            raise Overlap

    # --- forms of a schema

    def resolved(self, schema: Schema) -> Any:
        """Without a reference or allOf at its top; True for one that says nothing."""
        if isinstance(schema, dict) and ("$ref" in schema or "allOf" in schema):
            schema = merge({}, [schema], self.root)
        if isinstance(schema, bool):
            return schema
        if not isinstance(schema, dict):
            raise GrammarInvalid("A schema is not an object")
        return schema if without(schema, *ANNOTATIONS) else True

    def parts(self, whole: Schema, *, cutting: bool = False) -> list[Json]:
        """What a grammar of a schema writes, as schemas of one type each; [whole] if it is one. Raises Overlap.

        cutting: they take the schema's place; those of a `oneOf` cannot.
        """
        if whole is True:
            return list(_ANY)
        if cutting and "oneOf" in whole:
            raise Overlap
        for word in ("anyOf", "oneOf"):
            if word in whole:
                return self.branches(whole, word)
        kinds = kinds_of(whole)
        if not kinds:
            return list(_ANY)
        if len(kinds) == 1 and types_of(whole):
            return [whole]
        return [{**without(whole, "nullable"), "type": kind} for kind in kinds]

    def branches(self, schema: Json, word: str) -> list[Schema]:
        base = without(schema, word)
        found = []
        for part in schemas(schema, word):
            try:
                found.append(merge(base, [part], self.root))
            except Contradiction:
                continue  # it contradicts what is beside it
        return found
