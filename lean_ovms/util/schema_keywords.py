"""Keywords of JSON Schema by what their values are: https://json-schema.org/draft/2020-12."""

from __future__ import annotations

MAPS = ("properties", "patternProperties", "$defs", "definitions")
"""Keywords whose value has a schema for each name."""
LITERALS = ("enum", "const", "default", "examples")
"""Keywords whose value is no schema, whatever it looks like."""
