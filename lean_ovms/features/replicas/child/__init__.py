"""The part of the engine process: on which processors it runs."""
