"""The JSON schemas of tools' parameters, which give parsers the types of arguments that a model writes as text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any

from ...errors import GrammarInvalid, GrammarRefused
from ...grammar.schema import NOTES, flat, resolved
from ...types import Json

MAX_DEPTH = 32
"""The greatest depth of nested schemas. Deeper ones keep their references."""
_PARTS = ("anyOf", "oneOf", "allOf", "items", "properties", "additionalProperties")


class ParameterSchemas(Mapping[str, Any]):
    """The schemas of one tool's parameters by name. References are resolved, so a recursive schema contains itself."""

    def __init__(self, parameters: Any) -> None:
        self._root = parameters
        self._targets: dict[str, Json] = {}
        self._known: dict[str, Any] = {}

    @cached_property
    def _properties(self) -> Json:
        return _properties(self._root)

    def __getitem__(self, name: str) -> Any:
        if name not in self._known:
            self._known[name] = self._resolved(self._properties[name], MAX_DEPTH)
        return self._known[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._properties)

    def __len__(self) -> int:
        return len(self._properties)

    def _resolved(self, schema: Any, depth: int) -> Any:
        if not isinstance(schema, dict) or not depth:
            return schema
        done = {key: self._part(key, part, depth - 1) if key in _PARTS else part for key, part in schema.items()}
        ref = done.pop("$ref", None)
        if not isinstance(ref, str):
            return done
        target = self._target(ref, depth - 1)
        if set(done) <= NOTES:
            return target
        others = done.get("allOf")
        return {**done, "allOf": [*(others if isinstance(others, list) else ()), target]}

    def _part(self, key: str, part: Any, depth: int) -> Any:
        if key == "properties" and isinstance(part, dict):
            return {name: self._resolved(one, depth) for name, one in part.items()}
        if isinstance(part, list):
            return [self._resolved(one, depth) for one in part]
        return self._resolved(part, depth)

    def _target(self, ref: str, depth: int) -> Json:
        """Returns the schema to which a reference leads, or an empty one if it leads nowhere."""
        if ref not in self._targets:
            # Entered before it is filled, because references in it may lead back to it.
            target = self._targets[ref] = {}
            try:
                found = self._resolved(resolved(self._root, ref), depth)
            except GrammarInvalid:
                found = None
            target.update(found if isinstance(found, dict) else {})
        return self._targets[ref]


def _properties(parameters: Any) -> Json:
    try:
        whole = flat(parameters, parameters)
    except (GrammarRefused, AttributeError, TypeError, RecursionError):
        whole = parameters
    properties = whole.get("properties") if isinstance(whole, dict) else None
    return properties if isinstance(properties, dict) else {}
