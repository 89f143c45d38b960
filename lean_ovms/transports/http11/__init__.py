"""HTTP/1.1 on uvloop, parsed with h11."""
