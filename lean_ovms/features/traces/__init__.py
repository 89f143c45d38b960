"""Sends a span for each request to a model to an OpenTelemetry collector."""
