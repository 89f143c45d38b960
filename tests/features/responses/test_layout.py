"""Most of the feature is functions of what they are given."""

from __future__ import annotations

from tests.conventions.source import ROOT
from tests.conventions.test_layout import imported

PURE = {
    "compaction",
    "agent_tools",
    "connection",
    "response",
    "events",
    "items",
    "mcp_forms",
    "mcp_items",
    "output_items",
    "sqlite",
    "tables",
    "tool_grammar",
    "tool_origin",
}
"""Modules of the feature that are functions of what they are given: no loop, no thread, no model, no app."""


def test_the_pure_part_of_responses_stays_pure() -> None:
    found = []
    folder = ROOT / "features" / "responses"
    for path in folder.glob("*.py"):
        for name in imported(path) if path.stem in PURE else ():
            parts = name.split(".")
            neighbour = parts[3] if parts[:3] == ["lean_ovms", "features", "responses"] and len(parts) > 3 else ""
            living = {"asyncio", "threading", "models", "app", "config"} & set(parts[:3])
            if living or (neighbour and neighbour not in PURE):
                found.append(f"{path.name} must not import {name}")
    assert found == []
