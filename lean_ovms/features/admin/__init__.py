"""The endpoints with which the server tells of itself."""
