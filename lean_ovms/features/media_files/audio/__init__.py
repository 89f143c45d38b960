"""Audio files: their formats, their limits, decoding in a separate process, and encoding."""
