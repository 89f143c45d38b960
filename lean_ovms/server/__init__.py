"""One server process: build, listen, drain, stop."""
