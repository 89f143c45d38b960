"""Command lines of other servers."""
