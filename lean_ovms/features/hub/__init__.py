"""Pulling models from a Hugging Face hub into a model repository. Knows nothing of serving, asyncio or engines."""
