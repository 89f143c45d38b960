"""Transports, which receive requests for the API. They know Request, Response and a handler, not the API."""
