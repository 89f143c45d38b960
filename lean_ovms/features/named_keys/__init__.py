"""API keys in a file, with names, roles, models and limits, and a record of their usage."""
