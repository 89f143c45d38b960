"""The server process: build, listen, drain, stop."""
