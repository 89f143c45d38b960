"""Images of a request: where they come from, limits, decoding."""
