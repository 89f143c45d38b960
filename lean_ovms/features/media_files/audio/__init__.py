"""Audio files of requests: their formats, limits, and decoding in a process of its own."""
