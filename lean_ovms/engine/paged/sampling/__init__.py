"""Choosing the next tokens from logits: processors, probabilities, random numbers, rejection of draft tokens."""
