"""How requests arrive. Transports know Request, Response and a handler, and nothing of the API."""
