"""Attention with soft caps, as Gemma 2 has it."""
