"""Which models are served, and the bringing of what is wished to what is. Knows no HTTP and no engine."""
