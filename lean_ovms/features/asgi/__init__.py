"""The server under an ASGI host."""
