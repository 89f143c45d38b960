"""Converts nested elements, which are the value of a call's argument, to JSON with the types of the tool's schema."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from .values import kinds_of, quoted, typed

MIXED = "$text"
"""The member for text that is mixed with elements."""

_MOST = 64
"""The most alternatives of a schema that are examined."""
_INTEGER = re.compile(r"(-?)0+([1-9]\d*|0)")


@dataclass(slots=True)
class Element:
    """An element: its name, the pieces of its text, and the elements inside it."""

    name: str
    """The name in its tags."""
    texts: list[str] = field(default_factory=list)
    """The pieces of text directly inside it, in order."""
    children: list[Element] = field(default_factory=list)
    """The elements directly inside it, in order."""


def to_json(element: Element, schema: Any) -> str:
    """Converts an element's value to JSON text. Inner elements become a list if the schema says so, else an object."""
    text = "".join(element.texts)
    kind, container = _container(schema)
    if not element.children:
        return _leaf(text, schema, kind)
    if kind == "array":
        return "[" + ", ".join(to_json(child, container.get("items")) for child in element.children) + "]"
    return _object(element, text, container)


def _leaf(text: str, schema: Any, kind: str) -> str:
    """Converts the text of an element to JSON.

    The value is a string if the schema does not restrict its type. An empty text is an empty list or object if the
    schema allows one of these, and no string.
    """
    kinds = kinds_of(schema)
    if kind and "string" not in kinds and not text.strip():
        return "[]" if kind == "array" else "{}"
    if not kinds and not kind:
        return quoted(text)
    if kinds & {"integer", "number"} and (found := _INTEGER.fullmatch(text.strip())):
        text = found.group(1) + found.group(2)
    return typed(text, kinds)


def _object(element: Element, text: str, schema: Mapping[str, Any]) -> str:
    properties, more = schema.get("properties"), schema.get("additionalProperties")
    known = properties if isinstance(properties, dict) else {}
    members: dict[str, list[str]] = {}
    for child in element.children:
        members.setdefault(child.name, []).append(to_json(child, known.get(child.name, more)))
    if text.strip():
        name = MIXED
        while name in members:
            name = "$" + name
        members[name] = [quoted(text)]
    written = (values[0] if len(values) == 1 else f"[{', '.join(values)}]" for values in members.values())
    return "{" + ", ".join(f"{quoted(name)}: {value}" for name, value in zip(members, written, strict=True)) + "}"


def _container(schema: Any, seen: set[int] | None = None) -> tuple[str, Mapping[str, Any]]:
    """Returns "array" or "object", the first that the schema allows, and its schema; "" if it allows neither.

    `seen` has the identities of the schemas that were looked at, since a schema may contain itself.
    """
    seen = set() if seen is None else seen
    if not isinstance(schema, dict) or id(schema) in seen or len(seen) > _MOST:
        return "", {}
    seen.add(id(schema))
    kinds = schema.get("type")
    for kind in ("array", "object"):
        if kinds == kind or (isinstance(kinds, list) and kind in kinds):
            return kind, schema
    if kinds is None and "items" in schema:
        return "array", schema
    if kinds is None and ("properties" in schema or "additionalProperties" in schema):
        return "object", schema
    parts = [part for word in ("anyOf", "oneOf", "allOf") for part in _list(schema.get(word))]
    return next((found for part in parts if (found := _container(part, seen))[0]), ("", {}))


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
