"""Served models, independent of HTTP."""
