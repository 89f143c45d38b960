"""GGUF files: models as llama.cpp has them."""
