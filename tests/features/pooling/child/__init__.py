"""Tests of the task that computes vectors, scores and classes."""
