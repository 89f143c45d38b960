"""Replaces parts of hybrid networks by computation in chunks, in the engine process."""
