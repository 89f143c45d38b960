"""Convert a request's tools to the form that a chat template reads. Knows no jinja2."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from ...types import Json
from ...util.schema_keywords import LITERALS, MAPS

NO_PARAMETERS: Json = {"type": "object", "properties": {}}
_NULLABLE = ("default", "const")
"""Keywords of JSON Schema whose value may be null."""
_MAPS = (*MAPS, "dependentSchemas")


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolNeeds:
    """What a template needs of tools, found by rendering probes."""

    members: Json = field(default_factory=dict)
    """Members of each function, and of its parameters, for those that do not have them."""
    properties: Json = field(default_factory=dict)
    """Members of each parameter's schema."""
    default_texts: bool = False
    """Whether it reads default values as texts only."""


def prepare_tools(tools: list[Json], needs: ToolNeeds) -> list[Json]:
    """Returns OpenAI's tools for one rendering; members that are null are absent."""
    return [_tool(tool, needs) for tool in tools]


def _tool(tool: Any, needs: ToolNeeds) -> Any:
    function = tool.get("function") if isinstance(tool, dict) else None
    if not isinstance(function, dict):
        return tool
    given = {name: value for name, value in function.items() if value is not None}
    for name, value in needs.members.items():
        given[name] = {**value, **given[name]} if isinstance(given.get(name), dict) else given.get(name, value)
    if "parameters" in given:
        given["parameters"] = _schema(given["parameters"], needs)
    return {**tool, "function": given}


def _schema(schema: Any, needs: ToolNeeds) -> Any:
    """Returns a schema without the members that are null, which stand for nothing; templates write them as `None`."""
    if isinstance(schema, list):
        return [_schema(one, needs) for one in schema]
    if not isinstance(schema, dict):
        return schema
    found: Json = {}
    for name, value in schema.items():
        if value is None and name not in _NULLABLE:
            continue
        if name in LITERALS:
            found[name] = _text(value) if needs.default_texts and name == "default" else value
        elif name in _MAPS and isinstance(value, dict):
            found[name] = {key: _schema(inner, needs) for key, inner in value.items()}
        else:
            found[name] = _schema(value, needs)
    if needs.properties and isinstance(found.get("properties"), dict):
        filled = {
            key: {**needs.properties, **one} if isinstance(one, dict) else one
            for key, one in found["properties"].items()
        }
        found["properties"] = filled
    return found


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
