"""Anthropic's Messages API: conversations of content blocks, their events, errors and lists of models."""
