"""GGUF files as networks and tokenizers."""
