"""Prompts that are computed before a model is ready."""
