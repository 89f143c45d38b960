"""Parts of schemas: the targets of references, and the combination of several schemas."""

from __future__ import annotations

from typing import Any

import pytest

from lean_ovms.errors import GrammarInvalid
from lean_ovms.grammar.schema import flat, resolved

A: Any = {"a": {"type": "string"}}
B: Any = {"b": {"type": "integer"}}


def test_pointers_reach_into_lists_and_unescape() -> None:
    whole: Any = {"a/b": [{"c~d": True}], "e f": {}}
    assert resolved(whole, "#/a~1b/0/c~0d") is True
    assert resolved(whole, "#/e%20f") == {}
    assert resolved(whole, "#") is whole
    assert resolved(whole, "https://example.com/schema") is None
    with pytest.raises(GrammarInvalid):
        resolved(whole, "#/a~1b/1")


def test_parts_of_a_schema_are_merged_for_what_is_read_here() -> None:
    root: Any = {"$defs": {"d": {"properties": A, "required": ["a"], "title": "D"}}}
    schema: Any = {"allOf": [{"$ref": "#/$defs/d"}], "properties": B, "required": ["b"], "title": "whole"}
    assert flat(root, schema) == {"properties": {**A, **B}, "required": ["b", "a"], "title": "whole"}
    assert flat(root, {"$ref": "#/$defs/d"}) == root["$defs"]["d"]
