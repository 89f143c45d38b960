"""LoRA adapters as inputs of the network."""
