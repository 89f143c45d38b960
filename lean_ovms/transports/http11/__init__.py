"""HTTP/1.1 on uvloop, with requests parsed by h11."""
