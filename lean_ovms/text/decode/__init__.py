"""Converts token ids to text."""
