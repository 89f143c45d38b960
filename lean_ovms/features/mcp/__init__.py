"""Tools of MCP servers, which a response calls between its generations."""
