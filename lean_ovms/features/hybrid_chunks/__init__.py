"""Layers with states compute prompts by chunks of tokens, and decoding tokens as products."""
