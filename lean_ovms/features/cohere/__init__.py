"""Cohere's API: chat and embeddings."""
