"""The engine process, a child of the server, and its client; the front end only uses `client` and `protocol`."""
