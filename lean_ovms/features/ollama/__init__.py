"""Ollama's API: https://docs.ollama.com/api. Its names of models, its words for how text is sampled, its streams."""
