"""LoRA adapters in the engine process, as inputs of the network."""
