"""Command lines that were written for other servers."""
