"""A span of each request to a model, for an OpenTelemetry collector."""
