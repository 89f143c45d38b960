"""The OpenAPI document, a page to read and try the API, and the documentation."""
