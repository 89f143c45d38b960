"""Transports, which receive requests for the API. They know Request, Response and a handler, but nothing of the
API.
"""
