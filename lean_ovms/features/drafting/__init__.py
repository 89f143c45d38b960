"""Speculative decoding: tokens are drafted, and the model verifies several of them in one step."""
