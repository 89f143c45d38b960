"""The engine child's process and its loop, for any task."""
