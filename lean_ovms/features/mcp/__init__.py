"""Tools of MCP servers: a response calls them between its generations."""
