"""Compiling and matching grammars in the engine process."""
