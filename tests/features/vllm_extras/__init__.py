"""Tests of the endpoints that vLLM has besides those of OpenAI's API."""
