"""The part of the engine process: blocks and states on disk."""
