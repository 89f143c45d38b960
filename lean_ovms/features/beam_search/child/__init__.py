"""The beam search in the engine process."""
