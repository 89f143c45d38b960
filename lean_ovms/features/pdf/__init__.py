"""Extracts the text of PDF files."""
