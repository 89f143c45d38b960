"""Health, metrics and the API description."""
