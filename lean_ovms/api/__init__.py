"""Reads what clients ask for, and writes the answers."""
