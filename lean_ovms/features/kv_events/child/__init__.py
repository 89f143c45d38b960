"""The part of the engine process: the events, and their publisher."""
