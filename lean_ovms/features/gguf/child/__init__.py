"""Builds networks and tokenizers from GGUF files."""
