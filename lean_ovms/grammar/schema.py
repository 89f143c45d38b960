"""Resolves references in JSON Schemas, and merges several schemas of the same value."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from urllib.parse import unquote

from ..errors import GrammarInvalid, GrammarTooComplex
from ..types import Json

Schema = Json | bool

MAX_PARTS = 500
"""The most schemas that are merged into one."""
NOTES = frozenset(("title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly", "$comment"))
"""The keywords that do not constrain a value."""


def resolved(root: Schema, ref: str) -> Schema | None:
    """Returns the schema to which a reference leads; None in another document. Raises GrammarInvalid if missing."""
    if ref != "#" and not ref.startswith("#/"):
        return None
    found: Any = root
    for name in unquote(ref).split("/")[1:]:
        name = name.replace("~1", "/").replace("~0", "~")
        try:
            found = found[int(name)] if isinstance(found, list) else found[name]
        except (KeyError, IndexError, ValueError, TypeError):
            raise GrammarInvalid(f"$ref {ref[:80]} does not exist in the schema") from None
    if not isinstance(found, dict | bool):
        raise GrammarInvalid(f"$ref {ref[:80]} does not point to a schema")
    return found


def flat(root: Schema, schema: Schema) -> Schema:
    """Returns a schema with references resolved and allOf merged. If a keyword occurs several times, the first counts.

    Raises GrammarTooComplex if more than MAX_PARTS schemas must be merged.
    """
    return _flat(root, schema, [MAX_PARTS])


def _flat(root: Schema, schema: Schema, left: list[int]) -> Schema:
    if not isinstance(schema, dict) or not {"$ref", "allOf"} & set(schema):
        return schema
    left[0] -= 1
    if left[0] < 0:
        raise GrammarTooComplex("the schema combines too many other schemas")
    whole: Json = {key: value for key, value in schema.items() if key not in ("$ref", "allOf")}
    for part in _parts(root, schema):
        found = _flat(root, part, left)
        if isinstance(found, dict):
            merged = {
                "properties": {**found.get("properties", {}), **whole.get("properties", {})},
                "required": [*whole.get("required", ()), *found.get("required", ())],
            }
            whole = {**found, **whole, **{key: value for key, value in merged.items() if value}}
    return whole


def _parts(root: Schema, schema: Json) -> Iterator[Schema]:
    """Yields the schemas that must hold together with this one, because of $ref and allOf."""
    if isinstance(ref := schema.get("$ref"), str) and (found := resolved(root, ref)) is not None:
        yield found
    yield from schema.get("allOf", ())
