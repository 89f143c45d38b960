"""Completions: a text that goes on, in the form of OpenAI's older API."""
