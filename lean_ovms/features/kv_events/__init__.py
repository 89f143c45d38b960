"""KV cache events about blocks that enter and leave the prefix cache, as vLLM publishes them."""
