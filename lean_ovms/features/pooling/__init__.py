"""Pooling models: vectors, scores and classes of texts and images."""
