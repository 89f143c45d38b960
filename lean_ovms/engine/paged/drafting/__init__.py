"""Proposers of draft tokens: a draft model, and lookup in the prompt."""
