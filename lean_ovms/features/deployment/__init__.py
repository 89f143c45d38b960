"""The models of a server: those that it has, and those of them that are in memory."""
