"""Which models of the registry are in memory."""
