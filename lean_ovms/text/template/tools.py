"""Convert a request's tools to the form that a chat template reads. Knows no jinja2."""

from __future__ import annotations

import json
from typing import Any

from ...types import Json

NO_PARAMETERS: Json = {"type": "object", "properties": {}}
_NULLABLE = ("default", "const")
"""Keywords of JSON Schema whose value may be null."""
_VALUES = (*_NULLABLE, "enum", "examples")
"""Keywords whose values are no schemas."""
_MAPS = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
"""Keywords with a schema for each name."""


def prepare_tools(tools: list[Json], defaults: Json, *, texts: bool) -> list[Json]:
    """Returns the tools for one rendering; members that are null are absent.

    Args:
        tools: OpenAI's objects.
        defaults: What the template needs of each function, and of its parameters, for those that do not have it.
        texts: Whether the template reads default values as texts only.
    """
    return [_tool(tool, defaults, texts) for tool in tools]


def _tool(tool: Any, defaults: Json, texts: bool) -> Any:
    function = tool.get("function") if isinstance(tool, dict) else None
    if not isinstance(function, dict):
        return tool
    given = {name: value for name, value in function.items() if value is not None}
    if "parameters" in given:
        given["parameters"] = _schema(given["parameters"], texts)
    for name, value in defaults.items():
        given[name] = {**value, **given[name]} if isinstance(given.get(name), dict) else given.get(name, value)
    return {**tool, "function": given}


def _schema(schema: Any, texts: bool) -> Any:
    """Returns a schema without the members that are null, which stand for nothing; templates write them as `None`."""
    if isinstance(schema, list):
        return [_schema(one, texts) for one in schema]
    if not isinstance(schema, dict):
        return schema
    found: Json = {}
    for name, value in schema.items():
        if value is None and name not in _NULLABLE:
            continue
        if name in _VALUES:
            found[name] = _text(value) if texts and name == "default" else value
        elif name in _MAPS and isinstance(value, dict):
            found[name] = {key: _schema(inner, texts) for key, inner in value.items()}
        else:
            found[name] = _schema(value, texts)
    return found


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
