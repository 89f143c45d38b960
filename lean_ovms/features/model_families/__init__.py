"""Parsers and grammars of the tool calls and the reasoning of model families."""
