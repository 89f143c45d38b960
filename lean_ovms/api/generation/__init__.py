"""Reads and starts requests that generate text, for all APIs."""
