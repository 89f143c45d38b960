"""The search itself, in the engine process."""
