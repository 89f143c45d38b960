"""Helpers that are independent of models and HTTP."""
