"""Text processing: chat templates, detokenizing, and stop strings. Independent of sockets and of the engine."""
