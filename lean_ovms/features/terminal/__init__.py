"""Commands for people: chats with models in the terminal, and lists of models."""
