"""The models of a server: which it serves, and which of them are in memory."""
