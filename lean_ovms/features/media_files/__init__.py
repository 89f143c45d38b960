"""Decodes images, videos and audio files of requests, and encodes spoken audio, for other features."""
