"""Structured output as grammars and structural tags."""
