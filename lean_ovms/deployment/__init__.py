"""Which models are served, and keeping them in line with the configuration. Knows no HTTP and no engine."""
