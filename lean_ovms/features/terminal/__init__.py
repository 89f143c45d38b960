"""Chats with models in the terminal."""
