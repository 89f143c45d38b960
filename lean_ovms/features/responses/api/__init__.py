"""The endpoints of responses and conversations."""
