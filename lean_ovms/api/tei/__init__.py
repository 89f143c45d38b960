"""Hugging Face's text-embeddings-inference: its endpoints that have no other shape here."""
