"""Endpoints that vLLM has besides those of OpenAI's API."""
