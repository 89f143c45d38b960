"""Hugging Face's text-embeddings-inference: its endpoint that has no other shape here."""
