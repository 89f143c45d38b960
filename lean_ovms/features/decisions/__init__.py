"""Decisions: the probabilities of answers to questions about an input."""
