"""Ollama's API (https://docs.ollama.com/api), with its names of models, options and streams."""
