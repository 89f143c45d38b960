"""KV cache events in the engine process, and their publisher."""
