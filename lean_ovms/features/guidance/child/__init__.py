"""Grammars in the engine process."""
