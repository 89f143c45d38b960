"""Brings requests to the API. Transports know Request, Response and a handler, and nothing of the API."""
