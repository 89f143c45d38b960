"""A cache of compiled networks of language models."""
