"""Log lines, request records and metrics."""
