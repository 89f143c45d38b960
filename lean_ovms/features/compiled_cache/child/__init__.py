"""Stores networks in the cache, and compiles stored ones."""
