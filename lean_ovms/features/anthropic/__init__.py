"""Anthropic's Messages API: messages of content blocks, their streams, errors, batches and lists of models."""
