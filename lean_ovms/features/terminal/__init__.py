"""Commands for people: chats with models in the terminal, and what models there are."""
