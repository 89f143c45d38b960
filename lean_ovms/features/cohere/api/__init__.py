"""The endpoints of Cohere's API."""
