"""Endpoints about the server itself: health, version, options and load."""
