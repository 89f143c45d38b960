"""The front door: HTTP/1.1 on sockets. Knows Request and Response, nothing of what they mean."""
