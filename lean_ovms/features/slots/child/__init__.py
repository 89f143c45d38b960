"""The part of the engine process: files of slots."""
