"""A small load that measures a running server."""
