"""The attention itself, in the engine process."""
