"""vLLM's classes LLM and AsyncLLM, for Python programs."""
