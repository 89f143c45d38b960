"""Pulls models from a Hugging Face hub into a model repository."""
