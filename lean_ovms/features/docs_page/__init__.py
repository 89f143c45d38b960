"""The description of the API, and a page to read and try it."""
