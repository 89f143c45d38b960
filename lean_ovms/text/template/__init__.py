"""Renders messages with chat templates to prompts."""
