"""Structured output: answers that have the form which a request asks for."""
