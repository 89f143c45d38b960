"""The Responses API over a WebSocket."""
