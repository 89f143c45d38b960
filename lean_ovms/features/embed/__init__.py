"""The server inside a Python program."""
