"""Audio in the messages of a chat, and answers that are spoken."""
