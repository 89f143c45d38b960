"""The part that runs in the engine process: restricting it to some processors."""
