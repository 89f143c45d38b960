"""The limit of a file's text, which the processes that read PDF files share with the server."""

MAX_TEXT = 1 << 20
"""The most characters of text, which is more than models' contexts hold."""
