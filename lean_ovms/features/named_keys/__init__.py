"""API keys in a file: names, roles, models, limits, and what was used."""
