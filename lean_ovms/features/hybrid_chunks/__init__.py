"""Faster layers with states: prompts are computed in chunks of tokens, and decoding tokens by matrix products."""
