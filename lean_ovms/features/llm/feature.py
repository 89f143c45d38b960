"""The manifest of vLLM's Python classes."""

from __future__ import annotations

from ...manifest import Feature

FEATURE = Feature(
    name="llm",
    summary="offers vLLM's classes LLM and AsyncLLM to Python programs",
    needs=("chat", "completions", "deployment", "foreign_flags"),
)
