"""Measuring; not part of the package."""
