"""The sampler chain in the engine process."""
