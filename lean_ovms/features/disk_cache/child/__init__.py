"""The engine's tier of the prefix cache on disk: KV blocks, and states of hybrid networks."""
