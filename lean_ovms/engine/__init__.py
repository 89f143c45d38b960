"""The engine process (a child of the server) and its client in the front end.

Only `client` and `protocol` are used by the front end.
"""
