"""Audio in the messages of a chat, and spoken answers."""
