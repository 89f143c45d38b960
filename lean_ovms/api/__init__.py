"""What a client may say, and how we answer."""
