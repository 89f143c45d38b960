"""Samples the next tokens from logits: processors, probabilities, random numbers, and verification of draft tokens."""
