"""Benchmarks. They are not part of the package."""
