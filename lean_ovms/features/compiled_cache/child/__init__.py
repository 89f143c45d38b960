"""Keeping networks, and compiling those that were kept."""
