"""Rewrites schemas into forms of the same meaning in which llguidance enforces them.

`patternProperties` that match only declared or required properties, such as "^k$" beside k, become part of these:
llguidance enforces both schemas on k, but if no other property is allowed, it accepts a comma after which no name is
possible. `minProperties` and `maxProperties` beside optional properties become a choice of the properties there are:
llguidance refuses the whole schema, or does not count. Formats get the length of their longest sensible text, since
models may write the digits of a fraction of a second forever.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Sequence
from itertools import combinations
from typing import Any, NamedTuple

from ....grammar.schema import NOTES, Schema
from ....types import SCHEMA_LITERALS, SCHEMA_MAPS, Json

FORMAT_LENGTHS = {"date-time": 35, "time": 24, "duration": 40, "email": 254, "hostname": 253}
"""The most characters of strings in formats that do not limit them: a time with nanoseconds and an offset from UTC, as
many for a duration, and RFC 5321's and RFC 1035's limits."""
MAX_ALTERNATIVES, MAX_ALTERNATIVES_BYTES = 64, 16 << 10
"""The most sets of properties as which their number is written, and the most bytes of all of them."""
COUNTS = ("minProperties", "maxProperties")
_APART = ("$ref", "allOf", "anyOf", "oneOf", "patternProperties")
"""Keywords beside which the number of properties is not written as a choice."""
_SHARED = ("$defs", "definitions", *NOTES)
"""Keywords that stay outside of a choice."""


class PatternNames(NamedTuple):
    """The names that a pattern matches."""

    declared: tuple[str, ...]
    """The names of a given list that the pattern matches."""
    others: bool
    """Whether the pattern matches any other name."""


Match = Callable[[str, Sequence[str]], PatternNames]
"""Finds what a pattern matches of a list of names."""


class Rewriter:
    """Rewrites schemas. `dropped` has the keywords that could not be kept."""

    def __init__(self, match: Match) -> None:
        self.dropped: set[str] = set()
        self._match = match

    def schema(self, schema: Schema) -> Schema:
        """Returns a schema in forms that llguidance enforces."""
        done: Schema = self._rewritten(schema)
        return done

    def _rewritten(self, schema: Any) -> Any:
        if isinstance(schema, list):
            return [self._rewritten(part) for part in schema]
        if not isinstance(schema, dict):
            return schema
        done = {key: part if key in SCHEMA_LITERALS else self._part(key, part) for key, part in schema.items()}
        limit_format(done)
        if isinstance(done.get("properties"), dict) and done.get("additionalProperties") is False:
            if isinstance(done.get("patternProperties"), dict):
                _merge_patterns(done, self._match)
            return self._counted(done)
        return done

    def _part(self, key: str, part: Any) -> Any:
        if key in SCHEMA_MAPS and isinstance(part, dict):
            return {name: self._rewritten(one) for name, one in part.items()}
        return self._rewritten(part)

    def _counted(self, done: Json) -> Json:
        """Returns the schema of a closed object with its number of properties as a choice of sets of properties."""
        properties, required = done["properties"], done.get("required", [])
        names = [name for name in dict.fromkeys([*properties, *required]) if properties.get(name) is not False]
        optional = [name for name in names if name not in required]
        least = max(0, done.get("minProperties", 0) - (len(names) - len(optional)))
        most = min(len(optional), done.get("maxProperties", math.inf) - (len(names) - len(optional)))
        if least > most:
            return done  # which allows no object
        idle = [name for name, says in zip(COUNTS, (least > 0, most < len(optional)), strict=True) if not says]
        done = {key: part for key, part in done.items() if key not in idle}
        if (idle and least == 1) or (not least and most == 1) or len(idle) == len(COUNTS):
            return done  # which llguidance enforces
        inner = {key: part for key, part in done.items() if key not in (*_SHARED, *COUNTS)}
        number = math.comb(len(optional), most) * math.comb(most, least)
        size = number * len(json.dumps(inner))
        if number > MAX_ALTERNATIVES or size > MAX_ALTERNATIVES_BYTES or any(key in done for key in _APART):
            self.dropped.update(set(COUNTS).intersection(done))
            return {key: part for key, part in done.items() if key not in COUNTS}
        sets = _sets(optional, int(most), least)
        choice = [_with_properties(inner, names, optional, *each) for each in sets]
        return {**{key: done[key] for key in _SHARED if key in done}, "anyOf": choice}


def limit_format(schema: Json) -> None:
    """Adds the greatest length of a schema's format, unless the schema asks for longer strings."""
    form = schema.get("format")
    if isinstance(form, str) and schema.get("minLength", 0) <= FORMAT_LENGTHS.get(form, -1):
        schema["maxLength"] = min(schema.get("maxLength", math.inf), FORMAT_LENGTHS[form])


def _sets(optional: Sequence[str], most: int, least: int) -> Iterator[tuple[frozenset[str], frozenset[str]]]:
    """Yields sets of allowed properties with those of them that are required."""
    for allowed in combinations(optional, most):
        for needed in combinations(allowed, least):
            yield frozenset(allowed), frozenset(needed)


def _with_properties(
    schema: Json, names: Sequence[str], optional: Sequence[str], allowed: frozenset[str], needed: frozenset[str]
) -> Json:
    """Returns the schema of an object with some of its properties.

    Args:
        schema: The schema of the object.
        names: The names of its properties.
        optional: The names of those that are optional in it.
        allowed: The optional ones that are allowed now.
        needed: Those of these that are required now.
    """
    kept = [name for name in names if name in allowed or name not in optional]
    properties = {name: schema["properties"].get(name, True) for name in kept}
    required = [name for name in kept if name in needed or name not in optional]
    return {**schema, "properties": properties, "required": required}


def _merge_patterns(done: Json, match: Match) -> None:
    """Merges each pattern that matches only declared or required properties into their schemas."""
    properties, left = dict(done["properties"]), {}
    for pattern, part in done["patternProperties"].items():
        found = match(pattern, tuple(dict.fromkeys([*properties, *done.get("required", ())])))
        if found.others:
            left[pattern] = part
            continue
        for name in found.declared:
            properties[name] = _both(properties.get(name, True), part)
    done["properties"] = properties
    done["patternProperties"] = left
    if not left:
        del done["patternProperties"]


def _both(one: Schema, other: Schema) -> Schema:
    """Returns a schema of the values that two schemas allow."""
    if one is True or one == other:
        return other
    return one if other is True else {"allOf": [one, other]}
