"""Images and videos of requests: fetching them, their limits, and decoding."""
