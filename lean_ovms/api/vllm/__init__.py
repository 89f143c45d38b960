"""vLLM's own endpoints."""
