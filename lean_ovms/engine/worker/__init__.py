"""The engine process and its loop, for any task."""
