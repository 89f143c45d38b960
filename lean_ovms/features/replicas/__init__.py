"""Replicas of an engine: several processes compute one model, and each request goes to one of them."""
