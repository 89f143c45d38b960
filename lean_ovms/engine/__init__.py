"""The engine room: tokens in, tokens out. Knows nothing of HTTP or of the API."""
