"""Merges `patternProperties` that match only declared or required properties into these, such as "^k$" beside k.

llguidance enforces both schemas on k. But if no other property is allowed, it accepts a comma after which no name is
possible.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from ....grammar.schema import Schema
from ....types import SCHEMA_LITERALS, SCHEMA_MAPS, Json


class PatternNames(NamedTuple):
    """The names that a pattern matches."""

    declared: tuple[str, ...]
    """The names of a given list that the pattern matches."""
    others: bool
    """Whether the pattern matches any other name."""


Match = Callable[[str, Sequence[str]], PatternNames]
"""Finds what a pattern matches of a list of names."""


def merged(schema: Schema, match: Match) -> Schema:
    """Merges each pattern that matches only declared or required properties into their schemas."""
    done: Schema = _merged(schema, match)
    return done


def _merged(schema: Any, match: Match) -> Any:
    if isinstance(schema, list):
        return [_merged(part, match) for part in schema]
    if not isinstance(schema, dict):
        return schema
    done = {key: part if key in SCHEMA_LITERALS else _part(key, part, match) for key, part in schema.items()}
    patterns, properties = done.get("patternProperties"), done.get("properties")
    if isinstance(patterns, dict) and isinstance(properties, dict) and done.get("additionalProperties") is False:
        _write_in(done, match, patterns, dict(properties))
    return done


def _part(key: str, part: Any, match: Match) -> Any:
    if key in SCHEMA_MAPS and isinstance(part, dict):
        return {name: _merged(one, match) for name, one in part.items()}
    return _merged(part, match)


def _write_in(done: Json, match: Match, patterns: Json, properties: Json) -> None:
    left: Json = {}
    for pattern, part in patterns.items():
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
