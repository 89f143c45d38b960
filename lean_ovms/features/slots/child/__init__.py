"""The part that runs in the engine process: the files of slots."""
