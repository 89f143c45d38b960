"""TLS, which encrypts connections."""
