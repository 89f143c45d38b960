"""Coding agents that are started for a server."""
