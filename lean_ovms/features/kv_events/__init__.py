"""KV cache events: what enters and leaves the prefix cache, as vLLM publishes it."""
