"""Completions: the continuation of a text, as in OpenAI's older API."""
