"""The text of PDF files."""
