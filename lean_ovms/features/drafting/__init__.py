"""Speculative decoding: draft tokens are proposed, and the model verifies several of them in one step."""
